"""The two ways in which things go wrong: a wrong call, and a run that failed."""


class FedflatError(ValueError):
    """The caller asked for something that cannot be; the message is one sentence that says what and where."""


class RunError(RuntimeError):
    """A correct call whose run failed: a worker died, or training diverged."""
