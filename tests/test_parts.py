"""What a part may do, and the one sentence it gets for what it may not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import train

import fedflat as ff
from fedflat import Algorithm, FedflatError, Part, model, once, scalar, table, vector
from fedflat.core.memory import Memory, initial


class MutatesMemory(Part):
    client_keeps = {"h": vector}

    def finish(self, run, me, got):
        me.h += run.moved


class MutatesTheModel(Part):
    def perturb(self, step, me, got):
        return step.x.mul_(2)


class MutatesWhatItReceived(Part):
    server_keeps = server_sends = {"m": vector}

    def pull(self, step, me, got):
        return got.m.add_(step.x)


class MutatesTheServer(Part):
    server_keeps = {"m": vector}

    def update(self, w, srv, replies):
        srv.m += w
        return w


class MutatesAReply(Part):
    def aggregate(self, w, srv, replies):
        for r in replies:
            r.moved.mul_(0.5)
        return w


class MutatesTheMovement(Part):
    def finish(self, run, me, got):
        run.moved.neg_()


class MutatesThePerturbation(Part):
    def perturb(self, step, me, got):
        return 0.1 * step.x

    def observe(self, step, e, d):
        e.zero_()


class MutatesTheDirection(Part):
    def observe(self, step, e, d):
        d.mul_(0)


class MutatesTheLabels(Part):
    def pull(self, step, me, got):
        step.targets.fill_(0)
        return step.x


class MutatesATable(Part):
    server_keeps = {"b": table}

    def update(self, w, srv, replies):
        srv.b.mean().add_(1)
        return w


class ConstantForce(Part):
    @once
    def pull(self, step, me, got):
        return step.w


class MutatesAConstant(Part):
    inner = (ConstantForce(),)

    def perturb(self, step, me, got):
        return step.force(self.inner[0]).mul_(0.5)


class TermsTooShort(Part):
    def term(self, out, step, me, got):
        return out.logits.mean(1)[:-1]


class TermOfAMatrix(Part):
    def term(self, out, step, me, got):
        return out.logits


class TermWithoutReturn(Part):
    def term(self, out, step, me, got):
        pass


class RateWithoutReturn(Part):
    def rate(self, lr, k, K):
        pass


class RateOfAVector(Part):
    def rate(self, lr, k, K):
        return torch.ones(3) * lr


class TrainsNothing(Part):
    def trainable(self, layout):
        return lambda name: False


class TrainsAList(Part):
    def trainable(self, layout):
        return list(layout.head)


class MisspeltUpload(Part):
    client_sends = {"a": vector}

    def finish(self, run, me, got):
        return {"a": run.moved}

    def update(self, w, srv, replies):
        return w + replies.mean(lambda r: r.b)


class RowOfNobody(Part):
    server_keeps = {"b": table}

    def update(self, w, srv, replies):
        srv.b.set(-1, w)
        return w


class RowOfAList(Part):
    server_keeps = {"b": table}

    def update(self, w, srv, replies):
        srv.b.set(0, [1.0])
        return w


class ReadsUndeclared(Part):
    client_keeps = {"h": vector}

    def pull(self, step, me, got):
        return me.c


class WritesUndeclared(Part):
    server_keeps = {"m": vector}

    def update(self, w, srv, replies):
        srv.momentum = w
        return w


class SetsWhatItReceived(Part):
    server_keeps = server_sends = {"m": vector}

    def finish(self, run, me, got):
        got.m = run.moved


class KeepsTheWrongShape(Part):
    client_keeps = {"h": vector}

    def finish(self, run, me, got):
        me.h = run.moved[:3]


class KeepsAVectorAsScalar(Part):
    client_keeps = {"s": scalar}

    def finish(self, run, me, got):
        me.s = run.moved


class ReturnsTheWrongShape(Part):
    def pull(self, step, me, got):
        return step.x[:-1]


class ReturnsNothing(Part):
    def perturb(self, step, me, got):
        pass


class UploadsTooMuch(Part):
    client_sends = {"a": vector}

    def finish(self, run, me, got):
        return {"a": run.moved, "b": run.moved}


class SendsNothingItHas(Part):
    server_sends = {"m": vector}

    def broadcast(self, w, srv, client, sent):
        return w


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (MutatesMemory, "MutatesMemory.finish writes into a tensor in place"),
        (MutatesTheModel, "MutatesTheModel.perturb writes into a tensor in place"),
        (MutatesWhatItReceived, "MutatesWhatItReceived.pull writes into a tensor in place"),
        (MutatesTheServer, "MutatesTheServer.update writes into a tensor in place"),
        (MutatesAReply, "MutatesAReply.aggregate writes into a tensor in place"),
        (MutatesTheMovement, "MutatesTheMovement.finish writes into a tensor in place"),
        (MutatesThePerturbation, "MutatesThePerturbation.observe writes into a tensor in place"),
        (MutatesTheDirection, "MutatesTheDirection.observe writes into a tensor in place"),
        (MutatesTheLabels, "MutatesTheLabels.pull writes into a tensor in place"),
        (MutatesATable, "MutatesATable.update writes into a tensor in place"),
        (MutatesAConstant, "MutatesAConstant.perturb writes into a tensor in place"),
        (TermsTooShort, "TermsTooShort.term: the result has to be one value per sample, not a tensor of shape"),
        (TermOfAMatrix, "TermOfAMatrix.term: the result has to be one value per sample"),
        (TermWithoutReturn, "TermWithoutReturn.term: the result has to be one value per sample, not None"),
        (RateWithoutReturn, "RateWithoutReturn.rate: the result has to be one number, not None"),
        (RateOfAVector, "RateOfAVector.rate: the result has to be one number"),
        (TrainsNothing, "no tensor of this model is trained"),
        (TrainsAList, "`trainable` returns a function of a tensor's name"),
        (MisspeltUpload, "a reply has no 'b'; the part uploads a"),
        (RowOfNobody, "there is no client -1; a table has rows from 0 to 5"),
        (RowOfAList, "a row of a table holds a vector of .* not list"),
        (ReadsUndeclared, r"ReadsUndeclared.client_keeps does not declare 'c' \(it declares h\)"),
        (WritesUndeclared, r"WritesUndeclared.server_keeps does not declare 'momentum' \(it declares m\)"),
        (SetsWhatItReceived, r"what a client received \('m'\) cannot be set"),
        (KeepsTheWrongShape, r"KeepsTheWrongShape.client_keeps: 'h' holds a vector of \d+ numbers .*not .*\(3,\)"),
        (KeepsAVectorAsScalar, "KeepsAVectorAsScalar.client_keeps: 's' is a scalar"),
        (ReturnsTheWrongShape, "ReturnsTheWrongShape.pull: the result"),
        (ReturnsNothing, "ReturnsNothing.perturb: the result is missing; does it `return`"),
        (UploadsTooMuch, r"UploadsTooMuch.finish uploads \['a', 'b'\] but client_sends declares \['a'\]"),
        (SendsNothingItHas, "SendsNothingItHas.server_sends declares 'm' but nothing has set it"),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "processes:2"])
def test_a_part_that_breaks_the_rules_is_named(part, sentence, engine):
    with pytest.raises(FedflatError, match=sentence):
        train(part(), engine=engine)


def part(**body):
    body = {"rate": lambda self, lr, k, K: lr, **body}
    return type("Tried", (Part,), body)()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ff.algorithms.parse("fedsam+fednsam"), "LocalAscent and GlobalNesterov both fill `perturb`"),
        (lambda: ff.algorithms.parse("fednsam+fedscar"), "GlobalNesterov and Scars both fill `aggregate`"),
        (lambda: ff.algorithms.parse("man+man"), "SmallActivations is in there 2 times"),
        (lambda: ff.algorithms.parse("scaffold+fedsol(proximal=scaffold)"), "ControlVariates is in there 2 times"),
        (lambda: Algorithm(ff.algorithms.LocalAscent), "is it a class without its `\\(\\)`"),
        (
            lambda: Algorithm(part(client_keeps={"h": "vector"})),
            "'h' is fedflat.vector, scalar, .* not 'vector'",
        ),
        (lambda: Algorithm(part(client_keeps={"h": table})), "'h' is a table, which only the server keeps"),
        (lambda: Algorithm(part(server_sends={"m": vector})), "neither keeps it nor sets it in `broadcast`"),
        (lambda: Algorithm(part(client_sends={"m": vector})), "declares uploads, but has no `finish`"),
        (
            lambda: Algorithm(part(client_sends={"moved": vector}, finish=lambda self, run, me, got: {})),
            "'moved' is a field of every reply",
        ),
        (lambda: Algorithm(type("Empty", (Part,), {})()), "Empty fills no slot of the round; the slots are prepare"),
        (
            lambda: part(server_keep={"m": vector}),
            "Tried: a part declares no `server_keep`; did you mean `server_keeps`",
        ),
        (lambda: part(pertub=lambda self: 0), "Tried: a part has no slot `pertub`; did you mean `perturb`"),
        (
            lambda: part(pull=lambda self, step: 0),
            r"Tried.pull takes \(self, step\); the slot is called with \(self, step, me, got\)",
        ),
        (lambda: type("Derived", (ff.algorithms.LocalAscent,), {}), "parts are final"),
    ],
)
def test_conflicting_parts_are_refused_by_name(make, sentence):
    with pytest.raises(FedflatError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("fedsamm", "no algorithm 'fedsamm'.*did you mean fedsam"),
        ("fedsam(roh=1)", "fedsam has no hyper-parameter 'roh'.*did you mean rho"),
        ("fedsam(rho=-1)", "fedsam: rho=-1: input should be greater than or equal to 0"),
        ("fedsam(rho='big')", "fedsam: rho='big': input should be a valid number"),
        ("fedsam(0.1)", "name the hyper-parameters, as in fedsam\\(rho=...\\)"),
        ("fedsam(rho=)", "cannot read the algorithm"),
        ("fedsam(rho=0.1, rho=0.2)", "fedsam: a hyper-parameter is given twice"),
        ("fedsam*2", "cannot read"),
        ("fedsam.rho", "cannot read"),
        ("", "cannot read"),
        ("fedsol(adaptive=rows)", "fedsol: adaptive='rows'"),
        ("fedsol(layers=tail)", "fedsol: layers='tail'"),
        ("__import__('os')", "no algorithm '__import__'"),
        ("fedsam(rho=__import__('os'))", "no algorithm '__import__'"),
    ],
)
def test_an_expression_that_cannot_be_read(expression, sentence):
    with pytest.raises(FedflatError, match=sentence):
        ff.algorithms.parse(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "fedavg",
        "fedsol(rho=1.0)",
        "feddyn+man(zeta=0.2)",
        "fedsol(rho=0.5, adaptive='columns', layers='head')+man",
        "LocalAscent(rho=0.1)+ControlVariates()",
        "AscendAlong(force=Preservation(tau=2.0), rho=1.0)",
    ],
)
def test_expressions_round_trip(expression):
    algorithm = ff.algorithms.parse(expression)
    assert ff.algorithms.parse(str(algorithm)) == algorithm
    assert ff.algorithms.parse(str(algorithm + ff.algorithms.fedprox())) == algorithm + ff.algorithms.fedprox()


def test_what_names_an_algorithm():
    assert ff.algorithms.LocalAscent() + ff.algorithms.scaffold() == ff.algorithms.parse("fedsam+scaffold")
    assert ff.algorithms.fedsam() + ff.algorithms.ControlVariates() == ff.algorithms.parse("fedsam+scaffold")
    assert ff.algorithms.parse("fedavg()") == ff.algorithms.fedavg() == Algorithm()
    assert str(ff.algorithms.parse("fedsam()")) == "fedsam"
    assert ff.algorithms.resolve(ff.algorithms.fedsam) == ff.algorithms.fedsam()
    for wrong in (3, None, object):
        with pytest.raises(FedflatError, match="algorithm is a name such as"):
            ff.algorithms.resolve(wrong)


class CountsItsCalls(Part):
    """A pull that is the same in every step."""

    calls = []

    @once
    def pull(self, step, me, got):
        self.calls.append(step.k)
        return step.w * 0.1


def test_a_slot_marked_once_is_evaluated_once_a_round():
    calls = []
    train(CountsItsCalls(), rounds=2, callbacks=[lambda round, row, state: calls.append(len(CountsItsCalls.calls))])
    assert calls == [3, 3 + 4]  # as many as clients, not as steps


class Everything(Part):
    """Uses what no algorithm of the library uses yet: rate, blend, observe, trainable, scalars and models."""

    server_keeps = {"rounds": scalar, "first": model}
    server_sends = {"rounds": scalar}
    client_keeps = {"seen": scalar, "last": model}
    client_sends = {"taken": scalar}
    observed = []

    def trainable(self, layout):
        return lambda name: name not in layout.head

    def rate(self, lr, k, K):
        return lr * (1 - k / K)

    def blend(self, g, step, me, got):
        return 0.5 * g

    def observe(self, step, e, d):
        self.observed.append((step.k, step.K, step.lr, e, d.norm()))

    def finish(self, run, me, got):
        me.seen, me.last = me.seen + 1, run.x
        return {"taken": run.K}

    def update(self, w, srv, replies):
        srv.rounds = srv.rounds + 1
        assert all(r.taken == r.steps for r in replies)
        return w


def test_the_other_slots():
    states = []
    result = train(Everything(), callbacks=[lambda round, row, state: states.append(state)])
    start = torch.nn.utils.parameters_to_vector(train("fedavg", rounds=0).model.parameters())
    moved = (result.vector != start).split([*(p.numel() for p in result.model.parameters())])
    assert [bool(m.any()) for m in moved] == [True, True, True, True, False, False]
    k, K, lr, e, _ = Everything.observed[1]
    assert (k, K, e) == (1, 4, None)
    assert lr == pytest.approx(0.2 * 3 / 4)
    assert states[-1].server.kept["Everything"]["rounds"] == 5
    assert torch.equal(states[-1].server.kept["Everything"]["first"], start)
    assert result.memories[1]["Everything.seen"] == 4


class RemembersWhereItWas(Part):
    """Keeps step.x, which the loop moves in place afterwards."""

    client_keeps = {"before": model}
    seen = []

    def pull(self, step, me, got):
        self.seen.append((step.k, (step.x - me.before).norm()))
        me.before = step.x
        return 0 * step.x


def test_what_a_step_keeps_is_what_it_was_then():
    train(RemembersWhereItWas(), rounds=1)
    assert all(float(distance) == 0 if k == 0 else float(distance) > 1e-3 for k, distance in RemembersWhereItWas.seen)


def test_a_round_leaves_nothing_for_the_garbage_collector():
    """A vector that waits for the cyclic collector is a model's worth of memory for each client and round."""
    import gc
    import weakref

    from fedflat.core import local

    runs: list[weakref.ref] = []

    class Recorded(local.LocalRun):
        def __post_init__(self):
            super().__post_init__()
            runs.append(weakref.ref(self))

    train("fedscar+scaffold", rounds=1)  # torch imports what counts arithmetic, and keeps the first count
    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(local, "LocalRun", Recorded)
            train("fedscar+scaffold")
        assert len(runs) > 10
        assert not any(run() for run in runs)
    finally:
        gc.enable()


def test_a_direction_of_half_precision_has_no_nan():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert not ff.unit(torch.zeros(2, dtype=dtype)).isnan().any()
        assert ff.unit(torch.tensor([3.0, 4.0], dtype=dtype)).tolist() == pytest.approx([0.6, 0.8], rel=1e-2)


def test_fedgf_counts_as_many_rounds_as_its_numbers_have_bits():
    def shares(window: int, rounds: int, dtype: torch.dtype) -> list[float]:
        part, found = ff.algorithms.InterpolatedAscent(threshold=0.0, window=window), []
        replies = SimpleNamespace(mean=lambda value: value(SimpleNamespace(moved=torch.ones(2, dtype=dtype))))
        w = torch.zeros(2, dtype=dtype)
        srv = Memory("srv", part.server_keeps, initial(part.server_keeps, w), w)
        for _ in range(rounds):
            part.prepare(w, srv, [0])
            part.update(w, srv, replies)
            found.append(float(srv.c))
        return found

    assert shares(24, 30, torch.float32) == [1.0] * 30
    assert shares(8, 30, torch.bfloat16) == shares(11, 30, torch.float16) == shares(1, 30, torch.float64) == [1.0] * 30
    for window, dtype in ((9, torch.bfloat16), (12, torch.float16), (25, torch.float32)):
        with pytest.raises(FedflatError, match=rf"fedgf: .* {window - 1} rounds, not window={window}"):
            shares(window, 1, dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ff.algorithms.fedsam(rho=np.float64(0.25)),
        lambda: ff.algorithms.fedsam(np.float32(0.25)),
        lambda: ff.algorithms.fedsam(rho=np.array(0.25)),
        lambda: ff.algorithms.fedgf(window=np.int64(3)),
        lambda: ff.algorithms.fedsol(adaptive=np.bool_(False)),
        lambda: Algorithm(ff.algorithms.LocalAscent(np.float64(0.25))),
    ],
)
def test_numbers_of_numpy_are_written_as_pythons_own(make):
    assert "np." not in str(make())
    assert ff.algorithms.parse(str(make())) == make()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ff.algorithms.fedsam(rho=torch.tensor(0.1)), "a tensor is no hyper-parameter"),
        (lambda: ff.algorithms.LocalAscent(torch.tensor(0.1)), "a tensor is no hyper-parameter"),
        (lambda: ff.algorithms.LocalAscent(float("nan")), "LocalAscent: rho=nan should be a finite number"),
        (lambda: ff.algorithms.LocalAscent(10**400), "LocalAscent: rho=1000.* should be a finite number"),
        (lambda: ff.algorithms.LocalAscent(True), "LocalAscent: rho=True should be a finite number"),
        (lambda: ff.algorithms.InterpolatedAscent(window=2.0), "window=2.0 should be an integer"),
        (lambda: ff.algorithms.Dual("x"), "Dual: lam='x' should be a finite number"),
        (lambda: ff.algorithms.Dual(0.1, "size"), "dual_weights='size' should be 'samples' or 'uniform' or None"),
        (lambda: ff.algorithms.Restraint(1, 2, 3), r"ascend=1 should be a part AscendAlong\(\)"),
        (lambda: ff.algorithms.AgreedAscent(0.1, True), "sign=True should be -1 or 1"),
        (lambda: ff.algorithms.fedsmoo(sign=True), "fedsmoo: sign=True is a bool"),
        (lambda: ff.algorithms.fedsmoo(sign=1.0), "fedsmoo: sign=1.0 is a float"),
        ("LocalAscent(rho=nan)", "LocalAscent: rho=nan should be a finite number"),
        ("AscendAlong(force=fedprox)", "force='fedprox' should be a part"),
        ("Averaging()", "there is no algorithm 'Averaging'"),
        ("fedsam+" * 3000 + "man", "the algorithm 'fedsam.* has too many terms"),
        ("x" * 5000, r"there is no algorithm 'x{77}\.\.\.'"),
        ("fedcm(alpha=0)", "fedcm: alpha=0: input should be greater than 0"),
        ("mofedsam(alpha=0)", "mofedsam: alpha=0: input should be greater than 0"),
        ("fedsam(**{'rho': 1})", "write each hyper-parameter as name=value"),
        ("fedsam(rho=-inf)", "fedsam: rho=-inf: input should be"),
    ],
)
def test_a_value_that_no_run_could_use_is_told_when_it_is_given(make, reason):
    with pytest.raises(FedflatError, match=reason) as told:
        ff.algorithms.parse(make) if isinstance(make, str) else make()
    assert len(str(told.value)) < 700


def test_names_are_read_in_any_case():
    for name in ff.algorithms.names():
        assert ff.algorithms.parse(name.upper()) == ff.algorithms.parse(name)
