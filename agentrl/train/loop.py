"""The trainer process, from the first batch to the last checkpoint."""

import time

from agentrl.ledger.feed import CheckpointReport, StepReport, Stop
from agentrl.train.checkpoint import Checkpoints
from agentrl.train.client import ControllerClient
from agentrl.train.publication import Publication
from agentrl.train.trainer import Trainer


def train(
    trainer: Trainer,
    controller: ControllerClient,
    publication: Publication,
    checkpoints: Checkpoints,
    *,
    ledger_position: int = 0,
) -> Stop:
    """Train on what the controller feeds until it says stop. `ledger_position`: of the checkpoint that training starts from."""
    config, saved_step = trainer.config, trainer.step
    published: dict[str, float] = {}

    def save() -> int:
        path = checkpoints.save(trainer, policy_version=publication.next_version - 1, ledger_position=ledger_position)
        controller.report_checkpoint(CheckpointReport(step=trainer.step, path=str(path)))
        return trainer.step

    while True:
        waiting = time.perf_counter()
        batch = controller.next_batch(meanwhile=publication.check)
        wait_s = time.perf_counter() - waiting
        if isinstance(batch, Stop):
            break
        for minibatch in batch.minibatches:
            metrics = trainer.update(minibatch, batch) | published | {"wait_s": wait_s}
            controller.report_step(StepReport(step=trainer.step, metrics=metrics))
            wait_s = 0.0
            if trainer.step % config.publish_every == 0 or trainer.step == config.steps:
                published = publication.start(trainer)
        ledger_position = batch.ledger_position
        if config.save_every and trainer.step - saved_step >= config.save_every:
            saved_step = save()
    publication.wait()
    if trainer.step > saved_step:
        save()
    return batch
