"""Textbook: terms of the loss, and training a part of the model."""

from __future__ import annotations

from textbook_loop import (
    Algorithm,
    Client,
    F,
    Tensor,
    Tensors,
    Weights,
    head_inputs,
    in_head,
    kl,
    nn,
    not_true,
    torch,
)


class FedNTD(Algorithm):
    """Loss + beta tau^2 KL(softmax(z_w/tau) || softmax(z_x/tau)) over the classes that are not the label."""

    def __init__(self, w0: Tensors, q: Weights, beta: float = 1.0, tau: float = 1.0) -> None:
        self.beta, self.tau = beta, tau

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        z_w = not_true(client.logits(client.w), client.y)

        def term(logits: Tensor) -> Tensor:
            z_x = not_true(logits, client.y)
            return self.beta * self.tau**2 * kl(z_w / self.tau, z_x / self.tau)

        return client.g(x, term)


def contrastive(f_x: Tensor, f_w: Tensor, f_prev: Tensor, tau: float) -> Tensor:
    """-log(e^{cos(f_x,f_w)/tau} / (e^{cos(f_x,f_w)/tau} + e^{cos(f_x,f_prev)/tau})), mean over the batch.

    The cosine is torch's, whose denominator is at least 1e-8.
    """
    near, far = F.cosine_similarity(f_x, f_w) / tau, F.cosine_similarity(f_x, f_prev) / tau
    return (torch.logaddexp(near, far) - near).mean()


class MOON(Algorithm):
    """Loss + mu contrastive(x; w, x_prev), x_prev the client's last end point, w at its first participation."""

    def __init__(self, w0: Tensors, q: Weights, mu: float = 0.1, tau: float = 0.5) -> None:
        self.mu, self.tau = mu, tau
        self.x_prev: dict[int, Tensors] = {}

    def references(self, client: Client) -> tuple[Tensor, Tensor]:
        """f_w and f_prev of the minibatch"""
        return client.features(client.w), client.features(self.x_prev.get(client.i, client.w))

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        f_w, f_prev = self.references(client)
        with head_inputs(client.net) as features:
            return client.g(x, lambda logits: self.mu * contrastive(features[0], f_w, f_prev, self.tau))

    def force(self, client: Client, x: Tensors) -> Tensors:
        """The gradient of the contrastive loss alone."""
        f_w, f_prev = self.references(client)

        def loss() -> Tensor:
            with head_inputs(client.net) as features:
                client.net(client.x)
            return contrastive(features[0], f_w, f_prev, self.tau)

        return client.gradient(x, loss, update_buffers=False)

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.x_prev[i] = x_K


class FedBABU(Algorithm):
    """D = G restricted to the body: the last nn.Linear keeps its initial value."""

    def trainable(self, net: nn.Module) -> list[bool]:
        return [not head for head in in_head(net)]


ALGORITHMS = {
    "fedntd": FedNTD,
    "moon": MOON,
    "fedbabu": FedBABU,
}
