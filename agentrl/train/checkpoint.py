"""Checkpoints: a Hugging Face folder that any tool can load, with what else a bit-equal resume needs beside it.

A folder appears under its name only when it is whole, and its manifest has every file's length and checksum. So a kill in mid-write, a full
disk or a flipped bit is seen before anything of it is used, and an older checkpoint is never given up for a newer one that is not proven.

    checkpoints/step-000120/   config.json  model.safetensors  tokenizer…  optimizer.safetensors  rng.safetensors  manifest.json
"""

import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.errors import CheckpointError, boundary
from agentrl.train.trainer import Trainer

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
OPTIMIZER: Final = "optimizer.safetensors"
RNG: Final = "rng.safetensors"
_CARRIED = {".json", ".jinja", ".txt", ".model", ".tiktoken"}
"""Suffixes of files that a model folder has beside its weights: tokenizer, chat template, generation settings."""


class FileSum(msgspec.Struct, frozen=True):
    nbytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is, and the proof that it is whole."""

    step: int
    policy_version: int
    """The highest version published when it was written"""
    ledger_position: int
    """The ledger's last entry that the weights know of"""
    files: dict[str, FileSum]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest whole checkpoint, and the newer ones that were passed over."""

    path: Path
    manifest: Manifest
    refused: tuple[CheckpointError, ...]


class Checkpoints:
    """The checkpoints of one run. `source` is the model folder whose tokenizer files go along."""

    def __init__(self, folder: Path, *, keep: int, source: Path) -> None:
        self.folder = folder
        self.keep = keep
        self.source = source

    def save(self, trainer: Trainer, *, policy_version: int, ledger_position: int) -> Path:
        """Write one, prove it, and only then let the oldest go. Raises CheckpointError; then the older ones are as they were."""
        path = self.folder / f"step-{trainer.step:06d}"
        with self._whole_or_nothing(path) as partial:
            trainer.policy.model.save_pretrained(partial)
            _carry(self.source, partial)
            save_file(_optimizer_tensors(trainer), partial / OPTIMIZER)
            save_file(_rng_tensors(), partial / RNG)
            manifest = Manifest(
                step=trainer.step,
                policy_version=policy_version,
                ledger_position=ledger_position,
                files={file.name: _sum(file) for file in sorted(partial.iterdir())},
            )
            (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        self._let_go(path)
        return path

    def _let_go(self, newest: Path) -> None:
        """Of all but the newest `keep`. One of a later step is not one of them: it was torn, and a resume passed it over."""
        steps = _steps(self.folder)
        at = steps.index(newest)
        for gone in (*steps[:at], *steps[at + self.keep :]):
            shutil.rmtree(gone)

    @contextmanager
    def _whole_or_nothing(self, path: Path) -> Iterator[Path]:
        partial = path.with_name(f".partial-{path.name}")
        doing = f"checkpoint {path} was not written, older ones are untouched; free space there or lower train.keep_checkpoints"
        try:
            with boundary(CheckpointError, doing):
                self.folder.mkdir(parents=True, exist_ok=True)
                for torn in self.folder.glob(".partial-*"):
                    shutil.rmtree(torn)
                partial.mkdir()
                yield partial
                _sync(partial)
                if path.exists():
                    shutil.rmtree(path)
                partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def latest(folder: Path) -> Latest | None:
    """The newest checkpoint that is whole; None if there never was one. Raises CheckpointError if there are some and none is whole."""
    refused: list[CheckpointError] = []
    for path in _steps(folder):
        try:
            return Latest(path=path, manifest=verify(path), refused=tuple(refused))
        except CheckpointError as error:
            refused.append(error)
    if refused:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole; put back a copy of one, or remove them all and the run starts from its first weights "
            "again: " + " · ".join(map(str, refused))
        )
    return None


def verify(path: Path) -> Manifest:
    """Prove every byte of a checkpoint. Raises CheckpointError naming the file."""
    remedy = f"remove {path} to resume from an older checkpoint"
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except OSError as cause:
        raise CheckpointError(f"{path / MANIFEST} cannot be read ({cause.strerror}): the checkpoint is not whole; {remedy}") from cause
    except msgspec.MsgspecError as cause:
        raise CheckpointError(f"{path / MANIFEST} is corrupt ({cause}); {remedy}") from cause
    if manifest.schema > SCHEMA:
        raise CheckpointError(
            f"{path} has schema {manifest.schema}, this agentrl reads up to {SCHEMA}; resume with the agentrl that wrote it"
        )
    for name, expected in manifest.files.items():
        file = path / name
        found = _sum(file) if file.is_file() else None
        if found != expected:
            what = "is missing" if found is None else "is torn" if found.nbytes != expected.nbytes else "fails its checksum"
            raise CheckpointError(f"{file} {what}; {remedy}")
    return manifest


def restore(path: Path, trainer: Trainer) -> Manifest:
    """Optimizer, random numbers and step, into a trainer whose model was loaded from `path`. Raises CheckpointError."""
    manifest = verify(path)
    _load_optimizer(trainer, load_file(path / OPTIMIZER), path / OPTIMIZER)
    random = load_file(path / RNG)
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])
    trainer.step = manifest.step
    return manifest


def _optimizer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Named by parameter, so that they mean the same whatever order the groups are in."""
    state = trainer.optimizer.state
    return {
        f"{key}.{name}": value.detach().cpu().contiguous()
        for name, parameter in trainer.policy.named_parameters()
        for key, value in state.get(parameter, {}).items()
    }


def _load_optimizer(trainer: Trainer, tensors: dict[str, Tensor], file: Path) -> None:
    for name, parameter in trainer.policy.named_parameters():
        of_it = {key.split(".", 1)[0]: key for key in tensors if key.split(".", 1)[1] == name}
        if tensors and (not of_it or tensors[of_it["exp_avg"]].shape != parameter.shape):
            raise CheckpointError(f"{file} is of another model: it has no state of shape {list(parameter.shape)} for {name}")
        trainer.optimizer.state[parameter] = {key: tensors.pop(full).to(parameter.device) for key, full in of_it.items()}
    if tensors:
        raise CheckpointError(f"{file} is of another model: it has state for {next(iter(tensors))}, which this model lacks")


def _rng_tensors() -> dict[str, Tensor]:
    return {"cpu": torch.get_rng_state()} | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _carry(source: Path, target: Path) -> None:
    """What the model folder has beside its weights and what the checkpoint has of its own."""
    own = {MANIFEST, *(file.name for file in target.iterdir())}
    for file in source.iterdir():
        if file.is_file() and file.suffix in _CARRIED and file.name not in own and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)


def _steps(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("step-*"), key=lambda path: (len(path.name), path.name), reverse=True)


def _sum(file: Path) -> FileSum:
    crc = nbytes = 0
    with file.open("rb") as stream:
        while piece := stream.read(1 << 22):
            crc, nbytes = zlib.crc32(piece, crc), nbytes + len(piece)
    return FileSum(nbytes=nbytes, crc32=crc)


def _sync(folder: Path) -> None:
    """Make the files durable before the rename is."""
    for file in folder.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
