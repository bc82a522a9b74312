"""Defects of published code in perturbations, controls, duals and penalties: none of them is in the library.

Each row writes a defective formula as a change of the textbook loop. The library gives the numbers of the right one to
1e-12, and the defective one is visibly somewhere else.
"""

import pytest
import textbook
import torch
from federations import SIZES, network, train
from test_published_defects_servers import flat, setting
from textbook_duals import FedDyn, FedGloSS, FedProx, FedSMOO, FedSpeed, Scaffold
from textbook_loop import Tensors, clipped, each, norm, unit, weighted_sum, zeros
from textbook_loop import train as textbook_train
from textbook_scar import FedScar
from textbook_sharpness import FedLESAM, FedLESAMS, FedNSAM, FedSAM, FedWMSAM, MoFedSAM


def leading(v: Tensors) -> Tensors:
    """The index never advances: each tensor takes the leading entries of the flat vector."""
    vector = torch.cat([t.flatten() for t in v])
    return [vector[: t.numel()].view_as(t) for t in v]


def by_number(v: Tensors) -> Tensors:
    """The index is the number of a tensor: all its entries get that one entry, over the sum of as many."""
    vector = torch.cat([t.flatten() for t in v])[: len(v)]
    return [torch.full_like(t, u / (vector.abs().sum() + 1e-7)) for t, u in zip(v, vector.tolist(), strict=True)]


class LeadingAgreement(FedSMOO):
    """s by an index that never advances."""

    def gradient(self, client, x):
        s, self.s = self.s, leading(self.s)
        try:
            return super().gradient(client, x)
        finally:
            self.s = s


class WithoutMultipliers(FedSMOO):
    """The lines of s and mu_i are commented out."""

    def gradient(self, client, x):
        return client.sam(x, self.rho)


class DescendingAgreement(FedSMOO):
    """The slides' s+ = mean(s_i - mu_i) turns the ascent into a descent."""

    def server(self, w, p, x_K, D):
        new = super().server(w, p, x_K, D)
        self.s = each(torch.neg, self.s)
        return new


class LeadingDisplacement(FedLESAM):
    """w_prev - w by an index that never advances."""

    def gradient(self, client, x):
        u = leading(unit(each(torch.sub, self.w_prev.get(client.i, client.w), client.w)))
        return client.g(each(lambda x, u: x + self.rho * u, x, u))


class NumberedDisplacement(FedLESAM):
    """w_prev - w by the number of the tensor."""

    def gradient(self, client, x):
        u = by_number(each(torch.sub, self.w_prev.get(client.i, client.w), client.w))
        return client.g(each(lambda x, u: x + self.rho * u, x, u))


class TenthOfTheControl(FedLESAMS):
    """The control enters with a tenth of its strength."""

    def direction(self, client, x):
        controls = self.c, self.c_i[client.i]
        return each(lambda G, c, c_i: G + 0.1 * (c - c_i), self.gradient(client, x), *controls)


class DetachedProx(FedProx):
    """The penalty is a number when `backward` is called."""

    def direction(self, client, x):
        return self.gradient(client, x)


class NormAsProx(FedProx):
    """mu/2 ||x - w||, whose gradient has one length."""

    def direction(self, client, x):
        away = unit(each(torch.sub, x, client.w))
        return each(lambda G, u: G + self.mu / 2 * u, self.gradient(client, x), away)


class DetachedControl(Scaffold):
    """The correction is a number when `backward` is called."""

    def direction(self, client, x):
        return self.gradient(client, x)


class ControlWithoutRate(Scaffold):
    """c_i+ = c_i - c - D_i/K: the division by the rate is forgotten."""

    def finish(self, i, x_0, x_K, lr_sum):
        super().finish(i, x_0, x_K, self.K[i])


class DetachedDual(FedDyn):
    """Both terms are numbers when `backward` is called."""

    def direction(self, client, x):
        return self.gradient(client, x)


class WithoutQuadratic(FedDyn):
    """lam (x - w) is missing."""

    def __init__(self, w0, q, **hyper):
        super().__init__(w0, q, **hyper, quadratic=False)


class NotCleared(FedSAM):
    """The gradient of the first pass is still there when the second one is added."""

    def gradient(self, client, x):
        return each(torch.add, super().gradient(client, x), client.g(x, update_buffers=False))


class ShrinkingMomentum(MoFedSAM):
    """m <- (1 - alpha) m in place, at every step."""

    def direction(self, client, x):
        m = each(lambda m: (1 - self.alpha) ** (client.k + 1) * m, self.m)
        return each(lambda G, m: self.alpha * G + m, self.gradient(client, x), m)


class ForgetfulMomentum(FedNSAM):
    """m = (1 + gamma) Dbar from the second round on: the new average is used twice."""

    def server(self, w, p, x_K, D):
        twice = 1.0 if norm(self.m) == 0 else 1 + self.gamma
        self.m = each(lambda D: twice * D, weighted_sum(p, D))
        return each(torch.add, w, self.m)


class InertStep(FedNSAM):
    """Parameters without a gradient are skipped, and none has one: neither look-ahead nor perturbation."""

    def start(self, i, w):
        return w

    def gradient(self, client, x):
        return client.g(x)


class DualOverActive(FedGloSS):
    """The server's dual is divided by the number of active clients."""

    def server(self, w, p, x_K, D):
        right = super().server(w, p, x_K, D)
        old = getattr(self, "divided", zeros(w))
        self.divided = each(lambda old, D: old + D / len(x_K), old, weighted_sum(self.q, D))
        return each(lambda w, h, d: w - h + d, right, weighted_sum(self.q, self.h), self.divided)


class ServersRampIsTheClients(FedGloSS):
    """The server's radius is the clients' last one for as long as the ramp takes."""

    def open(self, w, active):
        rho, self.rho = self.rho, self.rho_l if self.t + 1 < self.ramp else self.rho
        ramp, self.ramp = self.ramp, 0
        super().open(w, active)
        self.rho, self.ramp = rho, ramp


class PredictedUphill(FedWMSAM):
    """The predicted point moves with the gradient, by a whole m_i a step, and the perturbation is by tensor number."""

    def direction(self, client, x):
        a = self.a
        m_i = each(lambda m, c, c_i: m + a / (1 - a) * (c - c_i), self.m, self.c, self.c_i[client.i])
        u = by_number(each(lambda w, m_i, x: w + client.k * m_i - x, client.w, m_i, x))
        G = client.g(each(lambda x, u: x - self.rho * u, x, u))
        return each(lambda G, m_i: a * G + (1 - a) * m_i, G, m_i)


class PostersDual(FedScar):
    """h_i += (w - x_K)/(eta K), with the sign and the scale of the poster."""

    def finish(self, i, x_0, x_K, lr_sum):
        self.h[i] = each(lambda h, x_0, x_K: h - (x_K - x_0) / lr_sum, self.h[i], x_0, x_K)
        self.x_last[i] = x_K


DEFECTS = [
    ("fedsmoo", {"rho": 0.3}, LeadingAgreement),
    ("fedsmoo", {"rho": 0.3}, WithoutMultipliers),
    ("fedsmoo", {"rho": 0.3}, DescendingAgreement),
    ("fedlesam", {"rho": 0.5}, LeadingDisplacement),
    ("fedlesam", {"rho": 0.5}, NumberedDisplacement),
    ("fedlesam-s", {}, TenthOfTheControl),
    ("fedprox", {}, DetachedProx),
    ("fedprox", {}, NormAsProx),
    ("scaffold", {}, DetachedControl),
    ("scaffold", {}, ControlWithoutRate),
    ("feddyn", {"lam": 0.3}, DetachedDual),
    ("feddyn", {"lam": 0.3}, WithoutQuadratic),
    ("fedsam", {"rho": 0.3}, NotCleared),
    ("mofedsam", {}, ShrinkingMomentum),
    ("fednsam", {}, ForgetfulMomentum),
    ("fednsam", {}, InertStep),
    ("fedgloss", {}, DualOverActive),
    ("fedgloss", {"rho": 0.05, "rho_l": 0.5, "ramp": 4}, ServersRampIsTheClients),
    ("fedwmsam", {"rho": 0.3}, PredictedUphill),
    ("fedscar", {}, PostersDual),
]


@pytest.mark.parametrize(("name", "hyper", "defect"), DEFECTS, ids=[d[2].__name__ for d in DEFECTS])
def test_the_library_has_the_right_formula_and_the_defect_is_visible(name, hyper, defect):
    found = train(f"{name}({', '.join(f'{k}={v}' for k, v in hyper.items())})").vector
    right = flat(textbook.run(name.replace("-", "_"), network(), setting(), **hyper))
    wrong = flat(textbook_train(defect, network(), setting(), **hyper)[0])
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    assert (found - wrong).abs().max() > 1e-3


def test_scaffold_takes_every_minibatch_of_an_epoch():
    found = train("scaffold").vector
    one = setting()
    one.batches = lambda t, i: setting().batches(t, i)[:: -(-SIZES[i] // 4)]
    torch.testing.assert_close(found, flat(textbook.run("scaffold", network(), setting())), rtol=0, atol=1e-12)
    assert (found - flat(textbook.run("scaffold", network(), one))).abs().max() > 1e-3


def test_clipping_acts_on_the_whole_quadratic_term():
    """Published code clips lam (h_i - w) with the gradient and adds lam x afterwards, as weight decay."""

    class SplitQuadratic(FedSpeed):
        def direction(self, client, x):
            G, h = self.gradient(client, x), self.h[client.i]
            D = clipped(each(lambda G, h, w: G + self.lam * (h - w), G, h, client.w), 0.5)
            return each(lambda D, x: D + self.lam * x, D, x)

    found = train("fedspeed").vector
    torch.testing.assert_close(found, flat(textbook.run("fedspeed", network(), setting())), rtol=0, atol=1e-12)
    wrong = flat(textbook_train(SplitQuadratic, network(), setting(clip=None))[0])
    assert (found - wrong).abs().max() > 1e-3
