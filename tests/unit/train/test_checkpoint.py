"""A checkpoint resumes bit by bit, or is refused by name."""

import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentrl.errors import CheckpointError
from agentrl.objective import ObjectiveConfig
from agentrl.objective.preset import objective
from agentrl.train.checkpoint import Checkpoints, latest, restore, verify
from agentrl.train.config import TrainConfig
from agentrl.train.model import PolicyModel, load_model
from agentrl.train.trainer import Trainer
from tests.unit.train.feed import Blobs, eight_episodes, one_batch
from tests.unit.train.models import tiny_llama

CPU = torch.device("cpu")
CONFIG = TrainConfig(lr=1e-2, steps=10, warmup_steps=3, schedule="cosine", weight_decay=0.01)


@pytest.fixture
def source(tmp_path) -> Path:
    """A model folder with a tokenizer's files beside the weights."""
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"made": "up"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def checkpoints(tmp_path, source) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2, source=source)


def trainer(folder: Path, blobs: Blobs) -> Trainer:
    return Trainer(load_model(folder, dtype="float32", device=CPU), objective(ObjectiveConfig()), CONFIG, blobs.open)


def run(of: Trainer, blobs: Blobs, steps: range) -> list[dict[str, float]]:
    seen = []
    for step in steps:
        episodes, tokens = eight_episodes(blobs, seed=100 * step)
        batch = one_batch(step, episodes, tokens)
        seen.append(of.update(batch.minibatches[0], batch))
    return seen


def weights(of: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in of.policy.named_parameters()}


def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(source, checkpoints):
    blobs = Blobs()
    straight = trainer(source, blobs)
    run(straight, blobs, range(1, 4))
    path = checkpoints.save(straight, policy_version=7, ledger_position=41)
    drawn = torch.rand(3)
    expected = run(straight, blobs, range(4, 7))

    resumed = trainer(path, blobs)
    manifest = restore(path, resumed)
    assert (manifest.step, manifest.policy_version, manifest.ledger_position) == (3, 7, 41)
    assert torch.equal(torch.rand(3), drawn)
    assert [metrics["loss"] for metrics in run(resumed, blobs, range(4, 7))] == [metrics["loss"] for metrics in expected]
    assert all(torch.equal(weights(straight)[name], value) for name, value in weights(resumed).items())


def test_it_is_a_hugging_face_folder_with_the_tokenizer_s_files(source, checkpoints):
    path = checkpoints.save(trainer(source, Blobs()), policy_version=0, ledger_position=0)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    assert torch.equal(loaded.get_input_embeddings().weight, tiny_llama().get_input_embeddings().weight)
    assert (path / "tokenizer.json").read_text() == '{"made": "up"}'
    assert (path / "chat_template.jinja").is_file()


def test_a_checkpoint_of_a_checkpoint_carries_the_tokenizer_on(tmp_path, source, checkpoints):
    first = checkpoints.save(trainer(source, Blobs()), policy_version=0, ledger_position=0)
    second = Checkpoints(tmp_path / "second", keep=1, source=first).save(trainer(first, Blobs()), policy_version=0, ledger_position=0)
    assert (second / "tokenizer.json").is_file()
    verify(second)


def test_only_the_newest_are_kept_and_leftovers_of_a_kill_go(source, checkpoints):
    blobs = Blobs()
    ours = trainer(source, blobs)
    leftover = checkpoints.folder / ".partial-step-000009"
    leftover.mkdir(parents=True)
    for step in range(1, 4):
        run(ours, blobs, range(step, step + 1))
        checkpoints.save(ours, policy_version=step, ledger_position=step)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-000002", "step-000003"]


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        ("model.safetensors", "flip", "fails its checksum"),
        ("optimizer.safetensors", "tear", "is torn"),
        ("rng.safetensors", "flip", "fails its checksum"),
        ("config.json", "remove", "is missing"),
        ("tokenizer.json", "tear", "is torn"),
    ],
)
def test_harm_to_any_file_is_refused_by_name_and_the_older_one_is_found(source, checkpoints, name, harm, says):
    blobs = Blobs()
    ours = trainer(source, blobs)
    run(ours, blobs, range(1, 2))
    older = checkpoints.save(ours, policy_version=1, ledger_position=1)
    run(ours, blobs, range(2, 3))
    newer = checkpoints.save(ours, policy_version=2, ledger_position=2)
    file = newer / name
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    file.write_bytes(data[:-1] if harm == "tear" else data)
    if harm == "remove":
        file.unlink()
    with pytest.raises(CheckpointError, match=rf"{name} {says}; remove .*step-000002 to resume from an older checkpoint"):
        verify(newer)
    found = latest(checkpoints.folder)
    assert found is not None
    assert (found.path, found.manifest.step, len(found.refused)) == (older, 1, 1)
    file.write_bytes(b"")
    (older / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"):
        latest(checkpoints.folder)


def test_a_torn_checkpoint_that_was_passed_over_costs_no_whole_one(tmp_path, source):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, source=source)
    ours = trainer(source, Blobs())
    ours.step = 9
    later = checkpoints.save(ours, policy_version=9, ledger_position=9)
    (later / "manifest.json").write_text("{")
    ours.step = 5
    saved = checkpoints.save(ours, policy_version=10, ledger_position=12)
    found = latest(checkpoints.folder)
    assert found is not None
    assert (found.path, found.refused) == (saved, ())


def test_no_checkpoint_is_none(tmp_path):
    assert latest(tmp_path / "nothing") is None


def test_a_newer_schema_is_refused(source, checkpoints):
    path = checkpoints.save(trainer(source, Blobs()), policy_version=0, ledger_position=0)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(CheckpointError, match="schema 99"):
        verify(path)


def test_the_state_of_another_model_is_refused(source, checkpoints):
    blobs = Blobs()
    ours = trainer(source, blobs)
    run(ours, blobs, range(1, 2))
    path = checkpoints.save(ours, policy_version=1, ledger_position=1)
    other = Trainer(PolicyModel(tiny_llama(kv_heads=1)), objective(ObjectiveConfig()), CONFIG, blobs.open)
    with pytest.raises(CheckpointError, match="of another model"):
        restore(path, other)


def test_a_disk_that_takes_no_more_leaves_the_older_checkpoint_and_says_so(source, checkpoints):
    blobs = Blobs()
    ours = trainer(source, blobs)
    older = checkpoints.save(ours, policy_version=0, ledger_position=0)
    run(ours, blobs, range(1, 2))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="was not written, older ones are untouched; free space"):
            checkpoints.save(ours, policy_version=1, ledger_position=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in checkpoints.folder.iterdir()] == [older.name]
    verify(older)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_model(tmp_path, dtype="float32", device=CPU)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="load the model in"):
        load_model(tmp_path, dtype="float32", device=CPU)


def test_weights_that_lack_a_tensor_are_refused_and_not_made_up(source):
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight; they are torn"):
        load_model(source, dtype="float32", device=CPU)


def test_a_checkpoint_before_the_first_step_resumes_too(source, checkpoints):
    blobs = Blobs()
    path = checkpoints.save(trainer(source, blobs), policy_version=0, ledger_position=0)
    resumed, straight = trainer(path, blobs), trainer(source, blobs)
    assert restore(path, resumed).step == 0
    assert run(resumed, blobs, range(1, 3))[1]["loss"] == run(straight, blobs, range(1, 3))[1]["loss"]
