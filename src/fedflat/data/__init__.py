"""Data sets, who holds which sample, who is active, and in which order samples are seen. Knows nothing of training."""

__all__ = [
    "Available",
    "Bernoulli",
    "Cyclic",
    "Dataset",
    "Federation",
    "Fixed",
    "Participation",
    "Schedule",
    "channel_statistics",
    "load",
    "minibatches",
    "names",
    "normalise",
    "own",
    "participation",
    "partition",
]

from fedflat.data.batches import minibatches
from fedflat.data.datasets import Dataset, load, names
from fedflat.data.federation import Federation
from fedflat.data.normalise import channel_statistics, normalise
from fedflat.data.own import own
from fedflat.data.participation import Available, Bernoulli, Cyclic, Fixed, Participation, Schedule, participation
from fedflat.data.partition import partition
