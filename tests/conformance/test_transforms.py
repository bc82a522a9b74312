"""A local step asks the host for nothing: it runs under vmap, and a captured one replays to the same numbers."""

import numpy as np
import pytest
import torch
from federations import NAMES, network, train
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import fedflat as ff
from fedflat.core import SGD, Batch, Job, Server, Task, Weights, local_round
from fedflat.core.local import Values, begin, finish, step
from fedflat.data.inputs import Inputs
from fedflat.data.population import Samples
from fedflat.feed import LocalData

gpu = pytest.mark.gpu  # skipped where there is no CUDA device
CLIENTS, STEPS, ROWS = 3, 4, 5
SETTINGS = SGD(momentum=0.8, weight_decay=0.02, clip=0.5)
FURTHER = [
    "fedsam+scaffold+man",
    "fedsol(adaptive=columns)",
    "fedsol(layers=head)",
    "fedsol(proximal=moon)",
    "fedsol(proximal=moon, layers=head)",
    "fedsol(ablation=A2)",
    "fedsol(ablation=A4, layers=body)",
    "fedasam(scale=all)",
    "fedgloss(ramp=3)",
    "fedscar(length=sigma, prox=received)",
]


def tasks(algorithm: ff.Algorithm, transforms: bool, norm: bool = False) -> Task:
    return Task(network(norm), inside=algorithm.looks_inside, transforms=transforms)


def samples() -> tuple[Tensor, Tensor, Tensor]:
    """x, y and masks of client, step and row; the last step's batch is short and filled up."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(CLIENTS, STEPS, ROWS, 1, 4, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 4, (CLIENTS, STEPS, ROWS), generator=g)
    mask = torch.ones(CLIENTS, STEPS, ROWS, dtype=torch.float64)
    mask[:, -1, 3:] = 0
    return x, y, mask


def jobs(algorithm: ff.Algorithm, task: Task) -> tuple[list[Job], list[Values]]:
    """The jobs and memories of a second round, so that nothing in them is zero."""
    server = Server(algorithm, task, Weights([10] * CLIENTS))
    x, y, _ = (t.to(task.vector.device) for t in samples())
    first = [
        local_round(algorithm, task, SETTINGS, job, None, [(Batch(x[i, k], y[i, k]),) for k in range(STEPS)])
        for i, job in enumerate(server.open(range(CLIENTS), 1, 0.1))
    ]
    server.close([reply for reply, _ in first])
    return list(server.open(range(CLIENTS), 2, 0.1)), [memory for _, memory in first]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", [*NAMES, *FURTHER])
def test_vmapped_and_padded_clients_give_the_serial_numbers(name, norm):
    algorithm = ff.algorithms.parse(name)
    if norm:  # a filled-up batch would enter BatchNorm's statistics
        x, y, mask = (t[:, :-1] for t in samples())
    else:
        x, y, mask = samples()
    steps = x.shape[1]
    plain, functional = tasks(algorithm, False, norm), tasks(algorithm, True, norm)
    given, memories = jobs(algorithm, plain)
    sizes = mask.sum(2).long()

    def cut(i: int, k: int) -> tuple[Batch, ...]:
        n = int(sizes[i, k])
        return (Batch(x[i, k, :n], y[i, k, :n]),)

    serial = [
        local_round(algorithm, plain, SETTINGS, given[i], memories[i], [cut(i, k) for k in range(steps)])
        for i in range(CLIENTS)
    ]

    def one(w, got, buffers, memory, x, y, mask):
        job = Job(0, 2, 0.1, w, got, buffers, given[0].coordinates)
        data = [(Batch(x[k], y[k], mask[k]),) for k in range(steps)]
        reply, kept = local_round(algorithm, functional, SETTINGS, job, memory, data)
        return reply.moved, reply.uploads, reply.buffers, kept

    def stack(values):
        return tree_map(lambda *leaves: torch.stack(leaves), *values)

    together = torch.vmap(one, randomness="error")(
        torch.stack([j.w for j in given]),
        stack([j.got for j in given]),
        stack([j.buffers for j in given]),
        stack(memories),
        x,
        y,
        mask,
    )
    for i, (reply, memory) in enumerate(serial):
        expected = tree_leaves((reply.moved, reply.uploads, reply.buffers, memory))
        found = tree_leaves(together)
        assert len(expected) == len(found)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*NAMES, *FURTHER])
def test_what_a_step_rebinds_in_a_memory_stays_in_its_place(name):
    """A captured step reads and writes the same places at every replay; the memory that was given stays as it was."""
    algorithm = ff.algorithms.parse(name)
    task = tasks(algorithm, False)
    given, memories = jobs(algorithm, task)
    before = [t.clone() for t in tree_leaves(memories[0])]
    x, y, _ = samples()
    run = begin(algorithm, task, SETTINGS, given[0], memories[0], STEPS)
    places = []
    for k in range(STEPS):
        step(run, (Batch(x[0, k], y[0, k]),) * algorithm.batches, k)
        places.append([t.data_ptr() for t in tree_leaves(run.kept)])
    assert places[1:] == places[:1] * (STEPS - 1)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(memories[0]), before, strict=True))
    moves = any(not torch.equal(a, b) for a, b in zip(tree_leaves(run.kept), before, strict=True))
    assert moves == (name == "fedsmoo")


@gpu
@pytest.mark.parametrize("name", [*NAMES, *FURTHER])
def test_a_captured_step_replays_to_the_same_numbers(name):
    algorithm = ff.algorithms.parse(name)
    cuda = torch.device("cuda")
    task = Task(network().to(cuda), inside=algorithm.looks_inside)
    x, y, _ = (t.to(cuda) for t in samples())
    given, memories = jobs(algorithm, task)

    def eager(i: int):
        data = [(Batch(x[i, k], y[i, k]),) for k in range(STEPS)]
        return local_round(algorithm, task, SETTINGS, given[i], memories[i], data)[0]

    expected = eager(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        eager(1)  # what is made once, libraries' handles above all, has to be there before the capture
        run = begin(algorithm, task, SETTINGS, given[0], memories[0], STEPS)
        step(run, (Batch(x[0, 0], y[0, 0]),), 0)  # the slots that are evaluated once
        batch_x, batch_y, k = x[0, 1].clone(), y[0, 1].clone(), torch.ones((), dtype=x.dtype, device=cuda)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(run, (Batch(batch_x, batch_y),), k)
    for j in range(1, STEPS):
        batch_x.copy_(x[0, j])
        batch_y.copy_(y[0, j])
        k.fill_(j)
        graph.replay()
    reply, _ = finish(run)
    torch.testing.assert_close(reply.moved, expected.moved, rtol=0, atol=1e-13)
    torch.testing.assert_close(reply.loss, expected.loss, rtol=0, atol=1e-13)


@gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_agrees_with_the_cpu(name):
    cpu, gpu = train(name), train(name, device="cuda")
    torch.testing.assert_close(gpu.vector.cpu(), cpu.vector, rtol=0, atol=1e-10)
    assert torch.equal(gpu.vector, train(name, device="cuda").vector)


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsam", "fedsol"])
def test_nothing_in_a_step_waits_for_the_host(name):
    algorithm = ff.algorithms.parse(name)
    cuda = torch.device("cuda")
    task = Task(network().to(cuda), inside=algorithm.looks_inside)
    x, y, _ = (t.to(cuda) for t in samples())
    given, memories = jobs(algorithm, task)
    run = begin(algorithm, task, SETTINGS, given[0], memories[0], STEPS)
    samples_of_a_client = Samples(x.flatten(0, 2), y.flatten())
    inputs = Inputs([samples_of_a_client.x], task.vector.dtype, cuda)
    rows = [np.arange(5), np.arange(5, 9), np.arange(9, 12)]
    data = iter(LocalData(samples_of_a_client, rows, inputs, algorithm.batches))
    step(run, next(data), 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for k, batches in enumerate(data, 1):
            step(run, batches, k)
    finally:
        torch.cuda.set_sync_debug_mode("default")
