"""Checkpoints that survive a crash at any moment.

A checkpoint is one safetensors file and a manifest with its digest. Everything is written beside its place, synced and
renamed; two generations are kept, and one whose digest is wrong does not count. All randomness of a run derives from
(seed, purpose, round, client), so vectors and counts are all that there is to save.
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from torch import Tensor

from .core import Table
from .errors import FedflatError

if TYPE_CHECKING:
    from .experiment import Simulation

LOG = logging.getLogger("fedflat")
FORMAT = 1
DIGESTS = ("initial model", "clients' data", "test data")  # in what names a run; their values tell nobody anything
MANIFESTS = ("manifest.json", "previous.json")


def save(folder: Path, simulation: "Simulation", identity: Mapping[str, Any]) -> None:
    """Write the state after a round as the newest of two generations."""
    folder.mkdir(exist_ok=True)
    tensors, tables = _state(simulation)
    content = save_arrays({name: t.detach().cpu().numpy() for name, t in tensors.items()})
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
    if before := _file_of(newest):
        os.replace(newest, previous)
    replace(newest, json.dumps(manifest, indent=1).encode())
    for old in folder.glob("round-*.safetensors"):
        if old.name not in (name, before or _file_of(previous)):
            old.unlink()


def load(folder: Path, simulation: "Simulation", identity: Mapping[str, Any]) -> None:
    """Restore the newest good generation, if there is one; what could not be used is told."""
    damaged: list[Path] = []
    for name in MANIFESTS:
        if not (folder / name).exists():
            continue
        try:
            manifest = json.loads((folder / name).read_text())
            content = (folder / manifest["file"]).read_bytes()
            if manifest["format"] != FORMAT or hashlib.sha256(content).hexdigest() != manifest["sha256"]:
                raise ValueError("its digest is wrong")
            arrays = load_arrays(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            LOG.warning("%s could not be used (%s)", folder / name, reason)
            damaged.append(folder / name)
            continue
        for key, value in identity.items():
            if manifest["identity"].get(key) != value:
                before = manifest["identity"].get(key)
                if key in DIGESTS:
                    raise FedflatError(f"{folder.parent} holds a run with other {key}")
                raise FedflatError(f"{folder.parent} holds a run with {key} = {before!r}, not {value!r}")
        _restore(simulation, arrays, manifest)
        break
    for manifest in damaged:
        manifest.unlink()


def _file_of(manifest: Path) -> str | None:
    """The file that a manifest names; None where it is not there, or damaged."""
    try:
        return str(json.loads(manifest.read_text())["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def replace(path: Path, content: bytes) -> None:
    """Put a file in its place in one move: there is the old one or the new one, never half of it."""
    beside = path.with_name(path.name + ".part")
    with open(beside, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    os.replace(beside, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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


def _restore(simulation: "Simulation", arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> None:
    server = simulation.server
    tensors = {name: torch.from_numpy(array.copy()).to(simulation.device) for name, array in arrays.items()}
    server.w = tensors["w"]
    server.buffers = {name: tensors[f"buffer/{name}"] for name in server.buffers}
    for part, kept in server.kept.items():
        for name, value in kept.items():
            key = f"{part}.{name}"
            if isinstance(value, Table):
                value.average = tensors[f"mean/{key}"]
                value.log_decay = manifest["tables"][key]["log_decay"]
                since = manifest["tables"][key]["since"]
                value.rows = {int(c): (tensors[f"row/{c}/{key}"], s) for c, s in since.items()}
            else:
                kept[name] = tensors[f"server/{key}"]
    memories: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("client/"):
            _, client, key = name.split("/", 2)
            memories.setdefault(int(client), {})[key] = tensor
    simulation.store.load(memories)
    simulation.round = manifest["round"]
    for name, value in manifest["totals"].items():
        setattr(simulation.totals, name, value)
