"""What is not the published file is refused in one sentence that names it, and a good file already there stays."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from dataclasses import replace

import numpy as np
import official
import pytest

from fedflat.data import load
from fedflat.data.archives import members, unpack
from fedflat.data.catalogue import SETS
from fedflat.data.download import download
from fedflat.errors import FedflatError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("FEDFLAT_DATA", str(home))
    return home


def put(monkeypatch, name, train, test, layout=0, **digests):
    entry = official.vouched(official.without_digests(name, train, test), layout, **digests)
    monkeypatch.setitem(SETS, name, entry)
    return entry


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def refused(name, *patterns):
    with pytest.raises(FedflatError) as error:
        load(name)
    text = str(error.value)
    assert "\n" not in text
    for pattern in patterns:
        assert pattern in text
    return text


PAGE = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda data: data[:1000], "is not the file that was published: its SHA-256 differs"),
        (lambda data: data[:-1], "is not the file that was published"),
        (lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], "is not the file that was published"),
        (lambda data: PAGE, "is a web page that was saved as data_batch_3.bin"),
        (lambda data: b"", "is empty"),
    ],
    ids=["truncated", "last byte missing", "one byte flipped", "web page", "empty"],
)
def test_a_file_with_a_digest(folder, monkeypatch, spoil, sentence):
    official.cifar10_binary(folder / "cifar10")
    file = folder / "cifar10" / "data_batch_3.bin"
    put(monkeypatch, "cifar10", 20, 4, file2=sha(file.read_bytes()))
    load("cifar10")
    file.write_bytes(spoil(file.read_bytes()))
    refused("cifar10", str(file), sentence, "remove it")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda data: data[: len(data) // 2], "is cut short or not gzip"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], ""),
        (lambda data: PAGE, "is a web page"),
        (lambda data: gzip.compress(official.idx(official.pixels(6, 28, 28)) + b"more"), "6x28x28"),
        (lambda data: gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**31, 28, 28) + bytes(99)), "is not an idx file"),
        (lambda data: gzip.compress(bytes(50_000_000)), "is not an idx file"),
        (lambda data: gzip.compress(official.idx(official.pixels(6, 28, 28))[:-1]), "does not hold the 4,704 bytes"),
    ],
    ids=["truncated", "one byte flipped", "web page", "too long", "absurd header", "bomb", "short"],
)
def test_an_idx_file_without_a_digest(folder, monkeypatch, spoil, sentence):
    put(monkeypatch, "mnist", 6, 3)
    official.mnist(folder / "mnist")
    load("mnist")
    file = folder / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(spoil(file.read_bytes()))
    refused("mnist", str(file), sentence if "6x28x28" not in sentence else "does not hold the 4,704 bytes")


def test_contents_count_however_they_were_compressed(folder, monkeypatch):
    entry = put(monkeypatch, "mnist", 6, 3)
    official.mnist(folder / "mnist")
    file = folder / "mnist" / "train-images-idx3-ubyte.gz"
    plain = gzip.decompress(file.read_bytes())
    files = entry.layouts[0].files
    known = replace(entry.layouts[0], files=(replace(files[0], digest="md5:0", contents=sha(plain)), *files[1:]))
    monkeypatch.setitem(SETS, "mnist", replace(entry, layouts=(known, *entry.layouts[1:])))
    for level in (1, 9):
        file.write_bytes(gzip.compress(plain, level))
        load("mnist")
    file.write_bytes(gzip.compress(plain[:-1] + bytes([plain[-1] ^ 1])))
    refused("mnist", str(file), "does not hold what was published: its SHA-256 differs")


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (pickle.dumps(Evil(), 2), "it names posix.system, which no official file does"),
        (b"\x80\x02cbuiltins\neval\n(T\x04\0\0\x001+1.tR.", "it names builtins.eval"),
        (official.python2_pickle({"labels": [1]}), "is not a batch of CIFAR (b'data')"),
        (official.python2_pickle({"labels": [1], "data": 3}), "is not a batch of CIFAR"),
        (official.python2_pickle({"labels": [1], "data": np.zeros((2, 3072), np.uint8)}), "holds (1,) labels"),
        (official.python2_pickle({"labels": [1], "data": np.zeros((2, 9), np.uint8)}), "pixels of shape (2, 9)"),
        (official.python2_pickle({"labels": [1], "data": np.zeros((2, 9), np.uint8)})[:80], "is not a batch of CIFAR"),
        (pickle.dumps({b"labels": [1], b"data": bytes(3072)}, 2), "is not a batch of CIFAR"),
    ],
    ids=["command", "eval", "no data", "number", "labels", "pixels", "truncated", "python 3"],
)
def test_a_pickle_calls_nothing(folder, monkeypatch, data, sentence, tmp_path):
    monkeypatch.chdir(tmp_path)
    put(monkeypatch, "cifar10", 20, 4, layout=1)
    official.cifar10_python(folder / "cifar-10-batches-py")
    file = folder / "cifar-10-batches-py" / "data_batch_1"
    file.write_bytes(data)
    refused("cifar10", str(file), sentence)
    assert not (tmp_path / "evil").exists()


def link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("member", "sentence"),
    [
        ("../evil", "holds '../evil', which leads out of its folder"),
        ("cifar-10-batches-bin/../../evil", "which leads out of its folder"),
        ("/evil-fedflat", "which leads out of its folder"),
        ("C:\\evil", "which leads out of its folder"),
        (link("cifar-10-batches-bin/x", "/etc", tarfile.SYMTYPE), "which is a link or a device"),
        (link("cifar-10-batches-bin/x", "../../evil", tarfile.LNKTYPE), "which is a link or a device"),
        (link("cifar-10-batches-bin/x", "", tarfile.CHRTYPE), "which is a link or a device"),
    ],
    ids=["climbs", "climbs within", "absolute", "windows", "symlink", "hard link", "device"],
)
def test_an_archive_that_reaches_out(folder, monkeypatch, member, sentence):
    put(monkeypatch, "cifar10", 20, 4)
    file = folder / "cifar10" / "cifar-10-binary.tar.gz"
    file.parent.mkdir()
    with tarfile.open(file, "w:gz") as archive:
        good = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        archive.addfile(good, io.BytesIO())
        archive.addfile(tarfile.TarInfo(member) if isinstance(member, str) else member, io.BytesIO())
    refused("cifar10", str(file), "is not safe to unpack", sentence)
    assert sorted(path.name for path in folder.rglob("*")) == ["cifar-10-binary.tar.gz", "cifar10"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_zip_that_reaches_out(tmp_path, name):
    file = official.zip_(tmp_path / "x.zip", {name: b"evil"})
    with pytest.raises(FedflatError, match="leads out of its folder"):
        list(members(file, 10**6))


def test_a_zip_with_a_link(tmp_path):
    info = zipfile.ZipInfo("tiny/link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FedflatError, match="which is a link or a device"):
        list(members(tmp_path / "x.zip", 10**6))


def test_bombs_are_not_unpacked(tmp_path):
    zipped = official.zip_(tmp_path / "x.zip", {"tiny/zeros": bytes(5_000_000)})
    tarred = official.tar(tmp_path / "x.tar.gz", {"tiny/zeros": bytes(5_000_000)})
    assert zipped.stat().st_size < 20_000
    for file in (zipped, tarred):
        with pytest.raises(FedflatError, match=r"swells to .*, beyond the 1,000,000 bytes"):
            unpack(file, tmp_path / "tiny", 1_000_000)
    header = tarfile.TarInfo("tiny/x")
    header.pax_headers = {"comment": "x" * 5_000_000}
    with tarfile.open(tmp_path / "pax.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(header)
    with pytest.raises(FedflatError, match="swells"):
        list(members(tmp_path / "pax.tar.gz", 1_000_000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pax.tar.gz", "x.tar.gz", "x.zip"]


@pytest.mark.parametrize(
    "spoil", [lambda data: data[: len(data) // 2], lambda data: PAGE, lambda data: b"\x1f\x8b" + data[9:]]
)
def test_an_archive_that_is_damaged(folder, monkeypatch, spoil):
    put(monkeypatch, "cifar10", 20, 4)
    contents = {f"cifar-10-batches-bin/data_batch_{i}.bin": official.cifar_rows(4).tobytes() for i in range(1, 6)}
    file = official.tar(folder / "cifar10" / "cifar-10-binary.tar.gz", contents)
    file.write_bytes(spoil(file.read_bytes()))
    refused("cifar10", str(file))
    assert list((folder / "cifar10").iterdir()) == [file], "nothing half unpacked is left"


def test_pictures(folder, monkeypatch):
    put(monkeypatch, "cinic10", 1, 1)
    good = official.picture(official.pixels(32, 32, 3))
    wide = official.picture(official.pixels(32, 33, 3))
    file = folder / "CINIC-10.tar.gz"
    for bad, sentence in (
        (wide, "cat-1.png of 33x32 pixels"),
        (good[:300], "is no PNG picture"),
        (PAGE, "is no PNG picture"),
        (official.picture(official.pixels(32, 32, 3), "JPEG"), "is no PNG picture"),
        (good + bytes(2 << 20), "in 1,048,577 bytes"),
        (official.picture(np.zeros((12000, 12000), np.uint8)), "is no PNG picture"),
    ):
        official.tar(file, {"train/cat/cat-1.png": bad, "test/cat/cat-2.png": good})
        refused("cinic10", str(file), sentence)
    official.tar(file, {"train/cat/cat-1.png": good})
    refused("cinic10", str(file), "holds 0 pictures where 1 were published")
    official.tar(file, {"train/cat/cat-1.png": good, "train/cat/cat-2.png": good})
    refused("cinic10", str(file), "holds more than 1 pictures")


def test_medmnist_reads_no_objects_and_believes_no_header(folder, monkeypatch):
    put(monkeypatch, "pathmnist", 4, 2)
    file = folder / "pathmnist.npz"
    shapes = {
        f"{split}_{what}": (2, 28, 28, 3) if what == "images" else (2, 1)
        for split in ("train", "val", "test")
        for what in ("images", "labels")
    }
    arrays = {name: official.pixels(*shape) % 9 for name, shape in shapes.items()}
    official.npz(file, **arrays)
    assert len(load("pathmnist").train[1]) == 4
    official.npz(file, **(arrays | {"train_images": np.array([Evil()], object)}))
    refused("pathmnist", str(file), "holds train_images.npy of object")
    official.npz(file, **(arrays | {"train_images": arrays["train_images"].astype(float)}))
    refused("pathmnist", "of float64")
    official.npz(file, **{name: array for name, array in arrays.items() if name != "val_labels"})
    refused("pathmnist", "is cut short or not an .npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**15, 28, 28, 3)})
    official.zip_(file, {f"{name}.npy": header.getvalue() for name in arrays})
    refused("pathmnist", "1000000000000000")
    official.zip_(file, {"train_images.npy": bytes(1_100_000_000)})
    refused("pathmnist", "swells beyond the 1,000,000,000 bytes")
    file.write_bytes(PAGE)
    refused("pathmnist", "is a web page that was saved as pathmnist.npz")


def test_svhn_and_ag_news(folder, monkeypatch):
    from scipy.io import savemat

    put(monkeypatch, "svhn", 6, 2)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(folder / name, {"X": official.pixels(32, 32, 3, 6), "y": np.ones((6, 1), np.uint8)})
    refused("svhn", str(folder / "test_32x32.mat"), "does not hold X of 32x32x3x2 bytes")
    whole = (folder / "train_32x32.mat").read_bytes()
    for bad in (whole[:5000], b"no MATLAB at all" * 20):
        (folder / "train_32x32.mat").write_bytes(bad)
        refused("svhn", str(folder / "train_32x32.mat"))
    put(monkeypatch, "ag-news", 2, 1)
    rows = [(1, "a", "b"), (2, "c", "d")]
    official.ag_news(folder / "ag_news", rows, rows[:1])
    load("ag-news")
    for bad in (
        '"5","a","b"\n',
        '"1","a"\n',
        '"1","a","b\n',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    ):
        (folder / "ag_news" / "train.csv").write_bytes(bad.encode("latin1"))
        refused("ag-news", str(folder / "ag_news" / "train.csv"))


@pytest.fixture
def server(tmp_path):
    """A folder that is served on loopback."""
    served = tmp_path / "served"
    served.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield served, f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()
        thread.join()


def test_download_checks_before_it_replaces(folder, monkeypatch, server):
    served, url = server
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    rows = {f"cifar-10-batches-bin/data_batch_{i}.bin": official.cifar_rows(4, seed=i).tobytes() for i in range(1, 6)}
    good = official.tar(
        served / "a" / "cifar-10-binary.tar.gz",
        rows | {"cifar-10-batches-bin/test_batch.bin": rows["cifar-10-batches-bin/data_batch_1.bin"]},
    )
    data = good.read_bytes()
    entry = put(monkeypatch, "cifar10", 20, 4, archive=sha(data))
    layout = entry.layouts[0]

    def source(*paths, size=0):
        archive = replace(layout.archive, urls=tuple(url + path for path in paths), size=size)
        monkeypatch.setitem(
            SETS, "cifar10", replace(entry, layouts=(replace(layout, archive=archive), *entry.layouts[1:]))
        )

    source("nowhere/x.tar.gz")
    refused("cifar10", "cannot be downloaded", "status 404", "put it into", str(folder / "cifar10"))
    source("nowhere/x.tar.gz", "a/cifar-10-binary.tar.gz")
    assert len(load("cifar10").train[1]) == 20
    kept = folder / "cifar10" / "cifar-10-binary.tar.gz"
    assert kept.read_bytes() == data
    unpacked = folder / "cifar10" / "cifar-10-batches-bin" / "data_batch_2.bin"
    whole = unpacked.read_bytes()
    unpacked.write_bytes(whole[:-1])
    refused("cifar10", str(unpacked))
    load("cifar10", fresh=True)
    assert unpacked.read_bytes() == whole, "a fresh download repairs"
    for bad in (data[:-5], PAGE, data[:200] + b"x" + data[201:], data + bytes(10)):
        (served / "bad.tar.gz").write_bytes(bad)
        for size in (0, len(data)):
            source("bad.tar.gz", size=size)
            with pytest.raises(FedflatError) as error:
                load("cifar10", fresh=True)
            assert "\n" not in str(error.value)
            assert "bad.tar.gz" in str(error.value) or "longer than what was published" in str(error.value)
            assert kept.read_bytes() == data, "the good one stays"
            assert sorted(path.name for path in kept.parent.iterdir()) == ["cifar-10-batches-bin", kept.name]
    assert len(load("cifar10").train[1]) == 20


def test_without_a_network_it_says_what_to_put_where(folder, monkeypatch):
    entry = SETS["svhn"]
    files = tuple(replace(file, urls=("http://127.0.0.1:9/" + file.name,)) for file in entry.layouts[0].files)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(SETS, "svhn", replace(entry, layouts=(replace(entry.layouts[0], files=files),)))
    text = refused(
        "svhn", "train_32x32.mat", "no connection", str(folder / "svhn"), "fetch it from http://127.0.0.1:9/"
    )
    assert text.count("train_32x32.mat") == 3
    (folder / "svhn" / "train_32x32.mat").write_bytes(b"x")
    refused("svhn", "test_32x32.mat cannot be downloaded")


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDFLAT_DATA", str(tmp_path / "file"))
    refused("svhn", f"nothing can be put into {tmp_path / 'file' / 'svhn'}")


def test_a_download_cannot_grow_without_end(tmp_path, server, monkeypatch):
    served, url = server
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (served / "big").write_bytes(bytes(3 << 20))
    from fedflat.data.catalogue import File

    with pytest.raises(FedflatError, match="big is longer than what was published"):
        download([File("big", size=1 << 20, urls=(url + "big",))], tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())
