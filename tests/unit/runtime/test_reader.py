"""What a run's episodes are now, also after a resume, and which of them can be looked at."""

from contextlib import closing
from pathlib import Path

import pytest

from agentrl.episode import EpisodeKey, EpisodeRecord
from agentrl.errors import ConfigError
from agentrl.gateway.store import EpisodeStore
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Published, Rejected, Served, Trained
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.reader import episodes, load
from tests.unit.ledger.build import batch, issued, name, scored_group


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create("r", runs=tmp_path)


def states(folder: RunFolder) -> list[tuple[str, int | None]]:
    return [(line.state, line.step) for line in episodes(folder)]


def test_steps_that_a_resume_took_back_trained_nothing(folder: RunFolder) -> None:
    with closing(Ledger.open(folder.ledger)) as ledger:
        ledger.record(Published(0), Served(0))
        for index, task in enumerate(("a", "b")):
            number = scored_group(ledger, task, [1.0], index=index)
            ledger.record(batch(ledger, [[number]]))
            ledger.record(Trained(index + 1))
        assert states(folder) == [("trained", 1), ("trained", 2)]
        ledger.resume_from(1)
        assert states(folder) == [("trained", 1), ("scored", None)]


def test_an_episode_that_failed_is_shown_if_its_blob_was_kept(folder: RunFolder) -> None:
    with closing(Ledger.open(folder.ledger)) as ledger:
        ledger.record(issued("a", 0, size=2), issued("a", 1, size=2))
        ledger.record(*(Rejected(name("a", member), "error") for member in range(2)))
    record = EpisodeRecord(id=name("a", 0), key=EpisodeKey(0, "a", 0), split="train", env="x", env_version="1", task={}, terminal="error")
    EpisodeStore(str(folder.root)).write(record, [])
    assert load(folder, name("a", 0)) == (record, [])
    with pytest.raises(ConfigError, match="rejected error: it has no blob to show"):
        load(folder, name("a", 1))
