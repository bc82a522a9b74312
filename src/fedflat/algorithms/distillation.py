"""The divergence by which a received model teaches a local one."""

from torch import Tensor
from torch.nn import functional

from fedflat.errors import FedflatError


def kl(teacher: Tensor, student: Tensor, tau: float, labels: Tensor) -> Tensor:
    """KL( softmax(teacher/tau) || softmax(student/tau) ), one value per sample, where the labels are classes."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise FedflatError(
            "distillation compares the probabilities of classes: it needs one class a sample as label, "
            f"not labels of shape {tuple(labels.shape)} ({labels.dtype})"
        )
    if student.ndim != 2 or student.shape[1] < 2:
        raise FedflatError(
            f"distillation needs outputs (samples, classes) of two classes or more, not {tuple(student.shape)}"
        )
    p, q = functional.log_softmax(teacher / tau, 1), functional.log_softmax(student / tau, 1)
    return (p.exp() * (p - q)).sum(1)
