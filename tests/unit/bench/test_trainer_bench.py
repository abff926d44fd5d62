"""Both sides of the trainer's benchmark do the same work."""

import io

import torch
from torch.testing import assert_close

from agentrl.bench import trainer as bench
from agentrl.objective import ObjectiveConfig
from agentrl.objective.preset import objective
from agentrl.train.model import PolicyModel
from agentrl.train.trainer import Trainer


def test_ours_and_the_padded_loop_make_the_same_update(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(bench, "ROWS", 4)
    monkeypatch.setattr(bench, "LONGEST", 90)
    blobs: dict[str, bytes] = {}
    loop = bench.PaddedLoop(bench._model())
    ours = Trainer(PolicyModel(bench._model()), objective(ObjectiveConfig()), bench.CONFIG, lambda handle: io.BytesIO(blobs[handle]))
    for step in (1, 2):
        turns = bench._turns(step)
        batch = bench._batch(turns, step, blobs)
        ours.update(batch.minibatches[0], batch)
        loop.update(turns)
    theirs = dict(loop.model.named_parameters())
    for name, parameter in ours.policy.named_parameters():
        # AdamW moves every weight by about lr = 1e-4 a step, whatever the size of its gradient.
        assert_close(parameter, theirs[name], atol=2e-5, rtol=0)
