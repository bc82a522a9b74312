"""Two algorithms with one seed see the same partition, initial model, active sets and batch order."""

import torch
from federations import NAMES

import fedflat as ff


def seen_by(algorithm: str, seed: int) -> dict[str, list]:
    seen: dict[str, list] = {"models": [], "clients": [], "active": [], "batches": []}

    class Watching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
            )

        def forward(self, x):
            if self.training and not (seen["batches"] and torch.equal(seen["batches"][-1], x)):
                seen["batches"].append(x.clone())
            return self.body(x)

    def model(seed: int) -> torch.nn.Module:
        seen["models"].append(Watching())
        return seen["models"][-1]

    def clients(seed: int) -> ff.data.Federation:
        seen["clients"].append(ff.data.Federation(ff.data.load("digits"), "lda:0.5", clients=12, seed=seed))
        return seen["clients"][-1]

    active: list[tuple[list[int], int]] = []
    ff.simulate(
        algorithm,
        model,
        clients,
        rounds=3,
        participation=3,
        epochs=1,
        seed=seed,
        engine="serial",
        device="cpu",
        callbacks=[lambda round, row, state: active.append((state.active, len(seen["batches"])))],
    )
    seen["active"] = [clients for clients, _ in active]
    del seen["batches"][active[-1][1] :]  # what follows counts a step's arithmetic
    return seen


def equal(a: dict[str, list], b: dict[str, list]) -> dict[str, bool]:
    parameters = [list(s["models"][0].parameters()) for s in (a, b)]
    return {
        "models": all(torch.equal(p, q) for p, q in zip(*parameters, strict=True)),
        "clients": all(torch.equal(p, q) for p, q in zip(a["clients"][0].parts, b["clients"][0].parts, strict=True)),
        "active": a["active"] == b["active"],
        "batches": len(a["batches"]) == len(b["batches"])
        and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a["batches"], b["batches"], strict=True)),
    }


def test_common_random_numbers():
    first = seen_by("fedavg", seed=5)
    assert len(first["batches"]) > 9
    for name in NAMES:
        seen = seen_by(name, seed=5)
        if ff.algorithms.parse(name).batches > 1:  # minibatches that do not fill a step are left over
            kept = [x for x in first["batches"] if any(torch.equal(x, other) for other in seen["batches"])]
            assert len(kept) == len(seen["batches"]) > 9, name
            seen["batches"] = first["batches"]
        assert equal(first, seen) == dict.fromkeys(first, True), name


def test_another_seed_redraws_everything():
    assert equal(seen_by("fedavg", seed=5), seen_by("fedavg", seed=6)) == dict.fromkeys(
        ("models", "clients", "active", "batches"), False
    )
