"""Own data: whatever it comes in, the same samples; what lies on disk is read row by row, everywhere in one order."""

import itertools
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

import fedflat as ff
from fedflat.data import Federation, own
from fedflat.data.population import Population
from fedflat.data.stream import Stream, ahead
from fedflat.errors import FedflatError

N, CLASSES = 60, 3
CPU = torch.device("cpu")


def arrays(n=N, shape=(3, 8, 8)):
    rng = np.random.default_rng(n)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % CLASSES


def everything(data):
    """All samples, those for the test included, in an order of their own."""
    x = torch.cat([data.train[0][:], data.test[0][:]]).flatten(1)
    order = sorted(range(len(x)), key=lambda i: x[i].tolist())
    return x[order], torch.cat([data.train[1], data.test[1]])[order]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(everything(one), everything(other), strict=True))


def saved(root, x, y, names=("ant", "bee", "cat"), form="png"):
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        folder = root / names[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = image.transpose(1, 2, 0)
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(folder / f"{i:04}.{form}")
    return root


def train(data, **changes):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(data.train[0].shape[1:].numel(), CLASSES))
    torch.nn.init.zeros_(model[1].weight)
    torch.nn.init.zeros_(model[1].bias)
    settings = {"rounds": 2, "epochs": 2, "batch_size": 7, "lr": 0.05, "engine": "serial", "device": "cpu"}
    return ff.simulate("fedsam", model, Federation(data, "lda:1", clients=3), **{**settings, **changes})


def test_three_lines():
    x, y = torch.randn(90, 4), torch.arange(90) % 2
    data = ff.data.own(x, y)
    fed = ff.data.Federation(data, "iid", clients=5)
    result = ff.simulate("fedavg", torch.nn.Linear(4, 2), fed, rounds=1, engine="serial")
    assert result.history[0]["test_accuracy"] is not None
    assert repr(data) == "Dataset(own: 72 training and 18 test samples of 4, 2 classes)"


def test_tensors_arrays_and_lists_are_the_same():
    x, y = arrays()
    tensors = own(torch.from_numpy(x), torch.from_numpy(y))
    assert equal(tensors, own(x, y))
    assert equal(tensors, own((x, y)))
    assert equal(tensors, own(x.tolist(), y.tolist()))
    assert equal(tensors, own(x.transpose(0, 2, 3, 1), y))
    assert tensors.train[0].dtype == torch.uint8
    assert own(x[:, 0], y).train[0].shape[1:] == (8, 8)
    x.flags.writeable = False
    assert equal(tensors, own(x, y))


@pytest.mark.parametrize(
    ("y", "classes", "names", "labels"),
    [
        ([0, 1, 2, 1], None, ("0", "1", "2"), [0, 1, 2, 1]),
        ([5, 7, 7, 5], None, ("5", "7"), [0, 1, 1, 0]),
        (["b", "a", "a", "b"], None, ("a", "b"), [1, 0, 0, 1]),
        (["b", "a", "a", "b"], ["b", "a", "c"], ("b", "a", "c"), [0, 1, 1, 0]),
        ([0, 1, 1, 0], ["x", "y", "z"], ("x", "y", "z"), [0, 1, 1, 0]),
        ([True, False, True, True], None, ("0", "1"), [1, 0, 1, 1]),
    ],
)
def test_labels_are_numbers_or_names(y, classes, names, labels):
    data = own(torch.arange(4.0)[:, None], y, classes=classes, test=0)
    assert data.train[1].tolist() == labels
    assert data.train[1].dtype == torch.int64
    assert data.classes == (names if y[0] is not True else data.classes)
    assert not len(data.test[1])


def test_without_a_test_a_run_has_none():
    x, y = arrays()
    data = own(x, y, test=0)
    assert Federation(data, "iid", clients=3).test is None
    assert train(data).history[-1]["test_accuracy"] is None


def test_a_share_is_held_out_in_each_class_and_a_test_is_taken_as_it_is():
    x, y = arrays(300)
    data = own(x, y, test=0.3)
    assert torch.bincount(data.test[1]).tolist() == [30, 30, 30]
    given = own(x, y, test=arrays(12))
    assert (len(given.train[1]), len(given.test[1])) == (300, 12)
    assert equal(own(x, y), own(x, y, seed=0))
    assert not torch.equal(own(x, y).test[0], own(x, y, seed=1).test[0])


def test_regression():
    data = own(np.random.default_rng(0).normal(size=(20, 3)), np.linspace(0, 1, 20))
    assert data.train[1].dtype == torch.float64
    assert data.classes == ()


def test_clients_are_natural():
    x, y = arrays()
    writers = [f"writer {i % 4}" for i in range(N)]
    data = own(x, y, clients=writers)
    assert data.client_names == ("writer 0", "writer 1", "writer 2", "writer 3")
    fed = Federation(data, "natural")
    assert len(fed) == 4
    assert sum(len(y) for _, y in fed) == len(data.train[1])
    assert sum(len(fed.client_test(i)[1]) for i in range(4)) == len(data.test[1])
    known = {image.tobytes(): writer for image, writer in zip(x, writers, strict=True)}
    for i, (images, _) in enumerate(fed):
        images = torch.cat([images, fed.client_test(i)[0]])
        assert {known[image.numpy().tobytes()] for image in images} == {f"writer {i}"}


# Folders


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_classes(tmp_path, channels):
    x, y = arrays(shape=(channels, 6, 9))
    data = own(saved(tmp_path, x, y))
    assert data.classes == ("ant", "bee", "cat")
    assert equal(data, own(x, y))
    assert data.train[0].dtype == torch.uint8


def test_a_folder_with_train_and_test(tmp_path):
    x, y = arrays()
    saved(tmp_path / "train", x[:40], y[:40])
    saved(tmp_path / "test", x[40:], y[40:])
    data = own(str(tmp_path))
    assert (len(data.train[1]), len(data.test[1])) == (40, 20)
    assert equal(data, own(x[:40], y[:40], test=(x[40:], y[40:])))


def test_a_folder_for_each_client(tmp_path):
    x, y = arrays()
    for client in range(4):
        saved(tmp_path / f"site{client}", x[client::4], y[client::4])
    data = own(tmp_path)
    assert data.client_names == ("site0", "site1", "site2", "site3")
    assert equal(data, own(x, y))
    assert len(Federation(data, "natural")) == 4


@pytest.mark.parametrize("form", ["npz", "csv", "headed"])
def test_a_file_for_each_client(tmp_path, form):
    x, y = arrays(shape=(4,))
    x = x.astype(np.float32)
    for client in range(3):
        mine, labels = x[client::3], y[client::3]
        if form == "npz":
            np.savez(tmp_path / f"site{client}.npz", x=mine, y=labels)
        elif form == "csv":
            np.savetxt(tmp_path / f"site{client}.csv", np.column_stack([mine, labels]), delimiter=",")
        else:
            table = np.column_stack([labels, mine])
            np.savetxt(tmp_path / f"site{client}.csv", table, delimiter=",", header="label,a,b,c,d", comments="")
    data = own(tmp_path)
    assert data.client_names == ("site0", "site1", "site2")
    assert equal(data, own(x, y))


def test_images_of_different_sizes_need_a_size(tmp_path):
    x, y = arrays()
    saved(tmp_path, x, y)
    Image.new("RGB", (20, 12)).save(tmp_path / "ant" / "zz.png")
    with pytest.raises(FedflatError, match=r"shape \(3, 12, 20\), but the first one is .* \(3, 8, 8\); .* `size`"):
        own(tmp_path)
    assert own(tmp_path, size=10).train[0].shape[1:] == (3, 10, 10)


def test_grey_beside_colour_is_colour(tmp_path):
    x, y = arrays()
    saved(tmp_path, x, y)
    Image.new("L", (8, 8), 7).save(tmp_path / "ant" / "zz.png")
    assert own(tmp_path).train[0].shape[1:] == (3, 8, 8)


def test_bad_folders_are_one_sentence(tmp_path):
    with pytest.raises(FedflatError, match="there is no folder"):
        own(tmp_path / "none")
    with pytest.raises(FedflatError, match="holds no data that fedflat knows: CLASS/image"):
        own(tmp_path)
    x, y = arrays()
    saved(tmp_path, x, y)
    (tmp_path / "bee" / "broken.png").write_bytes(b"<html>")
    with pytest.raises(FedflatError, match=r"bee/broken\.png cannot be read as an image"):
        own(tmp_path)
    deep = tmp_path / "deep"
    (deep / "scan").mkdir(parents=True)
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(deep / "scan" / "one.png")
    with pytest.raises(FedflatError, match=r"more than 8 bits a channel .*; hand it over in an array"):
        own(deep)
    files = tmp_path / "files"
    files.mkdir()
    np.savez(files / "a.npz", x=np.array([{"evil": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(FedflatError, match=r"a\.npz has to hold two arrays of numbers, x and y"):
        own(files)


# Hugging Face and torch data sets


class Label:
    names = ["ant", "bee", "cat"]


class HuggingFace:
    """As much of `datasets.Dataset` as is used."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: c[key] for name, c in self.columns.items()}


def stand_in(columns, names=None):
    features = {name: Label() if name == names else object() for name in columns}
    return HuggingFace(columns, features)


def real(columns, names=None):
    import datasets

    features = None
    if names:
        features = datasets.Dataset.from_dict(columns).features
        features[names] = datasets.ClassLabel(names=Label.names)
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture(params=[stand_in, real], ids=["stand-in", "real"])
def hugging_face(request, monkeypatch):
    if request.param is real:
        datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
        # some versions of dill cannot pickle pyarrow's tables, from which a name for the cache would be made
        monkeypatch.setattr(datasets.arrow_dataset, "generate_fingerprint", lambda *_: "0123456789abcdef")
    return request.param


def images(x):
    return [Image.fromarray(image.transpose(1, 2, 0)) for image in x]


@pytest.mark.parametrize("stream", [False, True])
def test_a_hugging_face_data_set_of_images(hugging_face, stream):
    x, y = arrays()
    source = hugging_face({"id": list(range(N)), "img": images(x), "kind": y.tolist()}, names="kind")
    data = own(source, stream=stream)
    assert data.classes == ("ant", "bee", "cat")
    assert equal(data, own(x, y))


def test_a_hugging_face_data_set_of_numbers_with_named_columns(hugging_face):
    x, y = arrays(shape=(4,))
    columns = {"a": y.tolist(), "b": x.tolist(), "who": [f"w{i % 2}" for i in range(N)], "fine": y.tolist()}
    data = own(hugging_face(columns), "fine", inputs="b", clients="who")
    assert equal(data, own(x, y))
    assert data.client_names == ("w0", "w1")
    with pytest.raises(FedflatError, match="say by y= which of the columns a, b, who, fine it is"):
        own(hugging_face(columns))
    with pytest.raises(FedflatError, match="say by inputs= which of the columns a, b, who it is"):
        own(hugging_face(columns), "fine")
    with pytest.raises(FedflatError, match="there is no column 'c'; there are a, b"):
        own(hugging_face(columns), "c")


def test_a_hugging_face_dictionary_brings_its_test(hugging_face):
    x, y = arrays()
    halves = [hugging_face({"image": images(x[s]), "label": y[s].tolist()}) for s in (slice(40), slice(40, N))]
    data = own({"train": halves[0], "test": halves[1]})
    assert (len(data.train[1]), len(data.test[1])) == (40, 20)
    assert equal(data, own(halves[0], test=halves[1]))


def test_texts_have_to_be_token_ids_first(hugging_face):
    with pytest.raises(FedflatError, match="holds str, and a model takes numbers; texts have to be made token ids"):
        own(hugging_face({"x": ["a text", "another"], "label": [0, 1]}))
    ids = own(hugging_face({"input_ids": [[1, 2], [3, 4]], "label": [0, 1]}), test=0)
    assert ids.train[0].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_torch_data_set(stream):
    x, y = arrays()
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert equal(own(tensors, stream=stream), own(x, y))
    pairs = list(zip(images(x), y.tolist(), strict=True))
    assert equal(own(pairs, stream=stream), own(x, y))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: own(torch.zeros(4, 2)), "own data are x and y, a folder, or a data set of pairs"),
        (lambda: own(torch.zeros(4, 2), [0, 1]), "there are 4 samples and 2 labels"),
        (lambda: own([], []), "there are 0 samples and 0 labels"),
        (lambda: own([1, 2, 3]), r"has to give pairs \(x, y\), not int"),
        (lambda: own(torch.zeros(4, 2), [0, 1, 0, 1], test=1.5), "test is another source, or the share"),
        (lambda: own(torch.zeros(2, 2), ["a", "b"], classes=["a"]), "the label 'b' is none of the classes a"),
        (lambda: own(torch.zeros(2, 2), [0, 1], clients=[1]), "clients are one id for each"),
        (lambda: own(torch.zeros(2, 2), [0, 1], test=(torch.zeros(1, 3), [0])), r"the shape \(2,\), .* test \(3,\)"),
        (lambda: own([["a", "b"]], [0]), "own data: x is no table of numbers"),
    ],
)
def test_a_wrong_call_is_one_sentence(call, sentence):
    with pytest.raises(FedflatError, match=sentence):
        call()


# Streams


@pytest.fixture
def mapped(tmp_path):
    x, y = arrays(200)
    np.save(tmp_path / "x.npy", x)
    return np.load(tmp_path / "x.npy", mmap_mode="r"), x, y


def test_a_memory_map_is_read_row_by_row_and_gives_the_same_run(mapped):
    lazy, x, y = mapped
    streamed = own(lazy, y)
    assert isinstance(streamed.train[0], Stream)
    resident = own(x, y)
    assert equal(streamed, resident)
    runs = [train(data, engine=engine) for data in (resident, streamed) for engine in ("serial", "processes:2")]
    assert all(torch.equal(run.vector, runs[0].vector) for run in runs[1:])
    assert runs[0].history[-1]["test_loss"] == runs[2].history[-1]["test_loss"]


def test_a_memory_map_works_as_a_clients_x(mapped):
    lazy, x, y = mapped
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, CLASSES))
    y = torch.from_numpy(y)
    one, other = (
        ff.simulate("fedavg", model, [(a, y)], rounds=1, engine="serial", augment="flip").vector
        for a in (lazy, torch.from_numpy(x))
    )
    assert torch.equal(one, other)


def test_only_the_rows_of_a_minibatch_are_read():
    asked = []

    def read(rows):
        asked.append(rows.tolist())
        return torch.from_numpy(rows).float()[:, None]

    stream = Stream(read, np.arange(100, 200), (1,), torch.float32, "numbers")
    data = own(stream, np.arange(100) % 2, test=0)
    population = Population(Federation(data, "iid", clients=4), torch.float32, CPU)
    assert asked == []
    rows = [np.array([2, 0]), np.array([5])]
    found = list(population.clients[1].minibatches(rows))
    held = 100 + population.clients[1].rows
    assert sorted(asked) == sorted([held[[2, 0]].tolist(), held[[5]].tolist()])
    assert found[0][0].flatten().tolist() == held[[2, 0]].tolist()


def test_a_folder_streams_and_gives_the_same_run(tmp_path):
    x, y = arrays()
    saved(tmp_path, x, y)
    streamed, resident = own(tmp_path, stream=True), own(tmp_path, stream=False)
    assert isinstance(streamed.train[0], Stream)
    runs = [train(data, augment="crop:2", engine=e) for data in (resident, streamed) for e in ("serial", "processes:2")]
    assert all(torch.equal(run.vector, runs[0].vector) for run in runs[1:])


def test_a_streamed_run_resumes_and_knows_other_files(tmp_path):
    x, y = arrays()
    data = own(saved(tmp_path / "images", x, y), stream=True)
    whole = train(data)
    train(data, rounds=1, out=tmp_path / "run")
    assert torch.equal(train(data, out=tmp_path / "run", resume=True).vector, whole.vector)
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "ant" / "0000.png")
    with pytest.raises(FedflatError, match="clients' data"):
        train(own(tmp_path / "images", stream=True), rounds=3, out=tmp_path / "run", resume=True)


def test_reading_goes_on_ahead_in_order():
    begun, names = [], set()
    gate = threading.Event()

    def read(i):
        begun.append(i)
        names.add(threading.current_thread().name)
        gate.wait(10)
        time.sleep(0.01 * (3 - i % 4))
        return i

    results = ahead(read, itertools.count())
    threading.Timer(0.2, gate.set).start()
    assert [next(results) for _ in range(12)] == list(range(12))
    assert len(begun) > 12
    assert threading.current_thread().name not in names
    results.close()


def test_what_goes_wrong_while_reading_is_told():
    def read(i):
        if i == 2:
            raise FedflatError("row 2 is damaged")
        return i

    with pytest.raises(FedflatError, match="row 2 is damaged"):
        list(ahead(read, range(5)))


def test_a_partition_of_a_hundred_clients_costs_indices_only():
    x = torch.zeros(50_000, 3, 32, 32, dtype=torch.uint8)
    fed = Federation(own(x, torch.arange(50_000) % 10, test=(x[:1], [9])), "lda:0.1", clients=100)
    population = Population(fed, torch.float32, CPU)
    assert {samples.x.data_ptr() for samples in population.clients} == {x.data_ptr()}
    assert sum(samples.rows.numel() * 8 for samples in population.clients) == 8 * 50_000
