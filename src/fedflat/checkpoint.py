"""Checkpoints that survive a crash at any moment, and tell when they were damaged.

A checkpoint is one safetensors file and a manifest with its size and digest, and with a digest of itself. Everything is
written beside its place, synced and renamed; two generations are kept, and one that is damaged does not count. All
randomness of a run derives from (seed, purpose, round, client), so vectors and counts are all that there is to save.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .core import Store, Table
from .errors import FedflatError

if TYPE_CHECKING:
    from .experiment import Simulation

LOG = logging.getLogger("fedflat")
FORMAT = 1
MANIFESTS = ("manifest.json", "previous.json")
BY_ROUND = ("rates", "active clients")  # in what names a run: lists, one entry a round, of which runs share the first
UNTOLD = ("initial model", "clients' data", "test data", *BY_ROUND)  # their values tell nobody anything

Manifest = dict[str, Any]
Tensors = dict[str, Tensor]


def save(folder: Path, simulation: "Simulation", identity: Mapping[str, Any]) -> None:
    """Write the state after a round as the newest of two generations."""
    folder.mkdir(exist_ok=True)
    tensors, tables = _state(simulation)
    content = packed(tensors)
    name = f"round-{simulation.round:06d}.safetensors"
    replace(folder / name, content)
    manifest = {
        "format": FORMAT,
        "round": simulation.round,
        "file": name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "identity": dict(identity),
        "tables": tables,
        "totals": dataclasses.asdict(simulation.totals),
    }
    newest, previous = (folder / m for m in MANIFESTS)
    if newest.exists():
        os.replace(newest, previous)
    replace(newest, json.dumps({**manifest, "checksum": _checksum(manifest)}, indent=1).encode())
    kept = {name, _file_of(previous)}
    for old in folder.glob("round-*"):
        if old.name not in kept:
            old.unlink()


def load(folder: Path, simulation: "Simulation", identity: Mapping[str, Any], lines: int) -> None:
    """Restore the newest generation that is whole and whose rounds are among the lines of metrics.jsonl, or refuse.

    What could not be used is told. The generation that is used becomes the newest one at once, so that the next
    checkpoint takes the place of what is damaged and never of what is whole.
    """
    unusable: dict[str, str] = {}
    generation = _newest(folder, lines, unusable)
    if generation is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unusable.items()) or "there is no manifest"
        raise FedflatError(
            f"{folder.parent} holds a run without a usable checkpoint ({reasons}); start again in another folder"
        )
    name, manifest, tensors = generation
    _check(manifest, simulation, identity, folder.parent)
    try:
        _restore(simulation, tensors, manifest)
    except KeyError as error:
        raise FedflatError(f"{folder.parent} holds a run of other parts: its checkpoint lacks {error}") from None
    for damaged, reason in unusable.items():
        LOG.warning("%s could not be used (%s)", folder / damaged, reason)
    if name != MANIFESTS[0]:
        os.replace(folder / name, folder / MANIFESTS[0])


def replace(path: Path, content: bytes) -> None:
    """Put a file in its place in one move: there is the old one or the new one, never half of it."""
    beside = path.with_name(path.name + ".part")
    try:
        with open(beside, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Named tensors as safetensors; those that share their memory are stored one by one."""
    apart: Tensors = {}
    seen = set[int]()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return save_tensors(apart)


def _newest(folder: Path, lines: int, unusable: dict[str, str]) -> tuple[str, Manifest, Tensors] | None:
    manifests: dict[str, Manifest] = {}
    for name in MANIFESTS:
        if (folder / name).exists():
            with _noted(name, unusable):
                manifests[name] = _manifest(folder / name)
    for name, manifest in sorted(manifests.items(), key=lambda item: item[1]["round"], reverse=True):
        with _noted(name, unusable):
            if manifest["round"] > lines:
                raise ValueError(f"it is of round {manifest['round']}, metrics.jsonl ends with round {lines}")
            return name, manifest, _tensors(folder / manifest["file"], manifest)
    return None


@contextlib.contextmanager
def _noted(name: str, unusable: dict[str, str]) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        unusable[name] = (isinstance(error, OSError) and error.strerror) or str(error)


def _manifest(path: Path) -> Manifest:
    """What a manifest says, if its checksum is right."""
    try:
        manifest = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise ValueError("it is damaged") from None
    if manifest.get("format") != FORMAT:
        raise ValueError(f"its format is {manifest.get('format')!r}, this version of fedflat reads {FORMAT}")
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise ValueError("its checksum is wrong")
    return manifest


def _tensors(path: Path, manifest: Manifest) -> Tensors:
    """What a manifest's file holds, if it is the very file that was written."""
    content = path.read_bytes()
    if len(content) != manifest["bytes"] or hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise ValueError(f"{path.name} is damaged")
    return load_tensors(content)


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _file_of(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return _manifest(path)["file"]
    return None


def _check(manifest: Manifest, simulation: "Simulation", identity: Mapping[str, Any], run: Path) -> None:
    """Refuse to go on with another run."""
    for key, value in json.loads(json.dumps(identity)).items():
        before = manifest["identity"].get(key)
        if key in BY_ROUND and before is not None:
            shared = min(len(before), len(value))
            before, value = before[:shared], value[:shared]
        if before != value:
            known = f"other {key}" if key in UNTOLD else f"{key} = {before!r}, not {value!r}"
            raise FedflatError(f"{run} holds a run with {known}")
    done, asked = manifest["round"], simulation.settings.rounds
    if done > asked:
        raise FedflatError(f"rounds = {asked}: {run} holds a run that has done {done} rounds already")


def _state(simulation: "Simulation") -> tuple[dict[str, Tensor], dict[str, Any]]:
    server = simulation.server
    tensors: dict[str, Tensor] = {"w": server.w}
    tables: dict[str, Any] = {}
    tensors |= {f"buffer/{name}": b for name, b in server.buffers.items()}
    for part, kept in server.kept.items():
        for name, value in kept.items():
            key = f"{part}.{name}"
            if isinstance(value, Table):
                tensors[f"mean/{key}"] = value.average
                tensors |= {f"row/{client}/{key}": row for client, (row, _) in value.rows.items()}
                since = {str(client): s for client, (_, s) in value.rows.items()}
                tables[key] = {"log_decay": value.log_decay, "since": since}
            else:
                tensors[f"server/{key}"] = value
    for client, named in simulation.memories.items():
        tensors |= {f"client/{client}/{key}": value for key, value in named.items()}
    return tensors, tables


def _restore(simulation: "Simulation", tensors: Tensors, manifest: Manifest) -> None:
    server = simulation.server
    tensors = {name: tensor.to(simulation.device, copy=True) for name, tensor in tensors.items()}

    def kept(key: str, value: Any) -> Any:
        if not isinstance(value, Table):
            return tensors[f"server/{key}"]
        table = Table(server.weights, server.w)
        table.average, table.log_decay = tensors[f"mean/{key}"], manifest["tables"][key]["log_decay"]
        since = manifest["tables"][key]["since"]
        table.rows = {int(client): (tensors[f"row/{client}/{key}"], s) for client, s in since.items()}
        return table

    memories: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("client/"):
            _, client, key = name.split("/", 2)
            memories.setdefault(int(client), {})[key] = tensor
    server.kept = {
        part: {name: kept(f"{part}.{name}", value) for name, value in values.items()}
        for part, values in server.kept.items()
    }
    server.buffers = {name: tensors[f"buffer/{name}"] for name in server.buffers}
    server.w = tensors["w"]
    simulation.store = Store()
    simulation.store.load(memories)
    simulation.round = manifest["round"]
    simulation.totals = dataclasses.replace(simulation.totals, **manifest["totals"])
