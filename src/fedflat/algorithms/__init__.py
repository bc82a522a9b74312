"""Every algorithm by name, and the parts of which they are made."""

from .fedavg import fedavg
from .feddyn import Dual, feddyn
from .fednsam import GlobalNesterov, fednsam
from .fedntd import NotTrueDistillation, fedntd
from .fedprox import Proximity, fedprox
from .fedsam import LocalAscent, fedsam
from .fedscar import Scars, fedscar
from .fedsol import AscendAlong, Preservation, fedsol
from .man import SmallActivations, man
from .registry import names, parse, register, resolve
from .scaffold import ControlVariates, scaffold

__all__ = [
    "AscendAlong",
    "ControlVariates",
    "Dual",
    "GlobalNesterov",
    "LocalAscent",
    "NotTrueDistillation",
    "Preservation",
    "Proximity",
    "Scars",
    "SmallActivations",
    "fedavg",
    "feddyn",
    "fednsam",
    "fedntd",
    "fedprox",
    "fedsam",
    "fedscar",
    "fedsol",
    "man",
    "names",
    "parse",
    "register",
    "resolve",
    "scaffold",
]
