"""Every algorithm by name, and the parts of which they are made."""

from .fedacg import AcceleratedStart, fedacg
from .fedasam import AdaptiveAscent, fedasam
from .fedavg import fedavg
from .fedbabu import BodyOnly, fedbabu
from .fedcm import ClientMomentum, fedcm
from .feddc import feddc
from .feddyn import Dual, feddyn
from .fedgamma import fedgamma
from .fedgf import InterpolatedAscent, fedgf
from .fedgloss import RampedAscent, ServerAscent, fedgloss
from .fedgmt import EMATeacher, fedgmt
from .fedlesam import GlobalAscent, RoundAscent, fedlesam, fedlesam_d, fedlesam_s
from .fednova import NormalizedAveraging, fednova
from .fednsam import GlobalNesterov, fednsam
from .fedntd import NotTrueDistillation, fedntd
from .fedopt import AdaptiveServer, ServerMomentum, fedadagrad, fedadam, fedavgm, fedyogi
from .fedprox import Proximity, fedprox
from .fedsam import LocalAscent, fedsam
from .fedscar import Scars, TetheredDual, fedscar
from .fedsmoo import AgreedAscent, fedsmoo
from .fedsol import AscendAlong, MeanGradients, Preservation, Restraint, fedsol
from .fedspeed import fedspeed
from .fedswa import MomentumControls, WeightAveraging, fedmoswa, fedswa
from .fedwmsam import PersonalMomentum, fedwmsam
from .local import Alone, local
from .man import SmallActivations, man
from .mofedsam import mofedsam
from .moon import ModelContrast, moon
from .perfedavg import AdaptationStep, perfedavg
from .registry import names, parse, register, resolve
from .scaffold import ControlVariates, scaffold

__all__ = [
    "AcceleratedStart",
    "AdaptationStep",
    "AdaptiveAscent",
    "AdaptiveServer",
    "AgreedAscent",
    "Alone",
    "AscendAlong",
    "BodyOnly",
    "ClientMomentum",
    "ControlVariates",
    "Dual",
    "EMATeacher",
    "GlobalAscent",
    "GlobalNesterov",
    "InterpolatedAscent",
    "LocalAscent",
    "MeanGradients",
    "ModelContrast",
    "MomentumControls",
    "NormalizedAveraging",
    "NotTrueDistillation",
    "PersonalMomentum",
    "Preservation",
    "Proximity",
    "RampedAscent",
    "Restraint",
    "RoundAscent",
    "Scars",
    "ServerAscent",
    "ServerMomentum",
    "SmallActivations",
    "TetheredDual",
    "WeightAveraging",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedasam",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedcm",
    "feddc",
    "feddyn",
    "fedgamma",
    "fedgf",
    "fedgloss",
    "fedgmt",
    "fedlesam",
    "fedlesam_d",
    "fedlesam_s",
    "fedmoswa",
    "fednova",
    "fednsam",
    "fedntd",
    "fedprox",
    "fedsam",
    "fedscar",
    "fedsmoo",
    "fedsol",
    "fedspeed",
    "fedswa",
    "fedwmsam",
    "fedyogi",
    "local",
    "man",
    "mofedsam",
    "moon",
    "names",
    "parse",
    "perfedavg",
    "register",
    "resolve",
    "scaffold",
]
