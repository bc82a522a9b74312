"""Local training: every client trains a model of its own, and nothing is averaged.

    x_0 = the client's own last end point, w^0 at first;   w+ = w

The end points are in the clients' memories; the server's model, which the history reports on, stays w^0. BatchNorm's
statistics are the clients' own with `buffers="local"`.
"""

from fedflat.core import Algorithm, Part, model

from .registry import register


class Alone(Part):
    """x_0 = x_last: go on from one's own end point."""

    travels = False
    client_keeps = {"x": model}

    def start(self, w, me, got):
        return me.x

    def finish(self, run, me, got):
        me.x = run.x

    def aggregate(self, w, srv, replies):
        return w


@register
def local() -> Algorithm:
    """Every client for itself."""
    return Algorithm(Alone())
