"""What is published is the model at the snapshot, each tensor once."""

from pathlib import Path

import pytest
import torch

from agentrl.errors import WeightError
from agentrl.weights.codec import read_payload
from agentrl.weights.publish import WeightPublisher, snapshot


def state():
    embedding = torch.arange(6.0).reshape(3, 2)
    return {"embed.weight": embedding, "norm.weight": torch.ones(2), "head.weight": embedding}


def test_tied_weights_are_published_once(tmp_path):
    update = WeightPublisher(tmp_path).publish(snapshot(state()), 3)
    assert (update.version, update.transport, update.base) == (3, "shared", None)
    assert [entry.name for entry in update.tensors] == ["embed.weight", "norm.weight"]


def test_the_snapshot_does_not_follow_the_model(tmp_path):
    live = state()
    shot = snapshot(live)
    live["norm.weight"].zero_()
    update = WeightPublisher(tmp_path).publish(shot, 1)
    data = read_payload(Path(update.locator), update.tensors)["norm.weight"]
    assert torch.frombuffer(bytearray(data), dtype=torch.float32).tolist() == [1.0, 1.0]


def test_a_transposed_view_keeps_its_values(tmp_path):
    update = WeightPublisher(tmp_path).publish(snapshot({"w": torch.arange(6.0).reshape(3, 2).T}), 1)
    data = read_payload(Path(update.locator), update.tensors)["w"]
    assert torch.frombuffer(bytearray(data), dtype=torch.float32).tolist() == [0, 2, 4, 1, 3, 5]
    assert update.tensors[0].shape == (2, 3)


def test_bf16_halves_the_payload(tmp_path):
    update = WeightPublisher(tmp_path).publish(snapshot(state(), dtype=torch.bfloat16), 1)
    assert {entry.dtype for entry in update.tensors} == {"BF16"}
    assert update.tensors[0].nbytes == 12


def test_only_the_last_payloads_are_kept_in_order_of_version(tmp_path):
    publisher = WeightPublisher(tmp_path, keep=2)
    for version in (8, 9, 10, 11):
        publisher.publish(snapshot(state()), version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weights-10.bin", "weights-11.bin"]


def test_close_removes_its_own_folder():
    publisher = WeightPublisher()
    publisher.publish(snapshot(state()), 1)
    publisher.close()
    assert not publisher.directory.exists()


def test_integers_are_refused():
    with pytest.raises(WeightError, match=r"int64"):
        snapshot({"steps": torch.ones(1, dtype=torch.int64)})
