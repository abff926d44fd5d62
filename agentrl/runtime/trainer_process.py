"""Main of the trainer process: loads the weights to start from, then trains until the controller says stop."""

from pathlib import Path
from typing import Literal

import fsspec
import msgspec

from agentrl.objective.config import ObjectiveConfig
from agentrl.runtime.child import read_spec, tell
from agentrl.runtime.log import log_to_stderr
from agentrl.train.config import TrainConfig

MODULE = "agentrl.runtime.trainer_process"


class TrainerSpec(msgspec.Struct, frozen=True):
    folder: str
    """Of the model, in Hugging Face format; the tokenizer's files go from there into checkpoints."""
    checkpoint: str | None
    """Of this run, to go on from."""
    dtype: Literal["float32", "bfloat16"]
    seed: int
    """The run's."""
    config: TrainConfig
    objective: ObjectiveConfig
    controller: str
    token: str
    store: str
    """fsspec URL of the run's episode blobs."""
    checkpoints: str
    weights: str
    """Folder of the payloads."""
    held_version: int
    """Under which the engines serve the weights that training starts from."""
    next_version: int


class TrainerReady(msgspec.Struct, frozen=True):
    parameters: int
    step: int


def run(spec: TrainerSpec) -> None:
    # torch is loaded here, after the parent's pipe is watched.
    import torch

    from agentrl.objective.preset import objective
    from agentrl.train.checkpoint import Checkpoints, restore
    from agentrl.train.client import ControllerClient
    from agentrl.train.loop import train
    from agentrl.train.model import load_model, pick_device
    from agentrl.train.publication import Publication
    from agentrl.train.trainer import Trainer
    from agentrl.weights.publish import WeightPublisher

    config = spec.config
    torch.set_num_threads(config.threads)
    torch.manual_seed(spec.seed)
    files, root = fsspec.core.url_to_fs(spec.store)
    policy = load_model(
        Path(spec.checkpoint or spec.folder),
        dtype=spec.dtype,
        device=pick_device(config.device),
        gradient_checkpointing=config.gradient_checkpointing,
    )
    trainer = Trainer(
        policy,
        objective(spec.objective),
        config,
        lambda handle: files.open(f"{root}/{handle}", "rb"),
        held_version=spec.held_version,
    )
    checkpoints = Checkpoints(Path(spec.checkpoints), source=Path(spec.folder), keep=config.keep_checkpoints)
    position = restore(Path(spec.checkpoint), trainer).ledger_position if spec.checkpoint else 0
    controller = ControllerClient(spec.controller, spec.token)
    publication = Publication(WeightPublisher(Path(spec.weights)), controller.report_ready, next_version=spec.next_version)
    tell(TrainerReady(parameters=sum(p.numel() for _, p in policy.named_parameters()), step=trainer.step))
    train(trainer, controller, publication, checkpoints, ledger_position=position)


if __name__ == "__main__":
    log_to_stderr("trainer")
    run(read_spec(TrainerSpec, scratch=lambda spec: spec.weights))
