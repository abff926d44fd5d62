"""Reading a run, live or dead: its episodes as the ledger tells of them, and their blobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from agentrl.config import did_you_mean
from agentrl.episode import EpisodeKey, EpisodeRecord, Turn, read_record, read_turns
from agentrl.errors import ConfigError, StoreError, boundary
from agentrl.gateway.store import handle_of
from agentrl.ledger import read_journal
from agentrl.ledger.entry import BatchMade, Done, Issued, Rejected, Running, Scored, Trained
from agentrl.ledger.revert import Revert, resumes
from agentrl.runtime.folder import RunFolder


class EpisodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One episode in a table."""

    id: str
    split: Literal["train", "eval"]
    key: EpisodeKey
    state: str
    """issued, running, done, scored, trained, or "rejected REASON" """
    reward: float | None = None
    sampled_tokens: int = 0
    terminal: str = ""
    step: int | None = None
    """That trained it."""
    handle: str = ""


def episodes(folder: RunFolder) -> Iterator[EpisodeLine]:
    """In the order of their issue; what was trained in steps that a resume took back is so no more. Raises LedgerError."""
    revert = Revert(resumes(read_journal(folder.ledger)))
    lines: dict[str, EpisodeLine] = {}
    minibatches: dict[int, list[str]] = {}

    def change(episode: str, **values: object) -> None:
        lines[episode] = msgspec.structs.replace(lines[episode], **values)

    for recorded in read_journal(folder.ledger):
        match revert.standing(recorded):
            case Issued(episode=episode, key=key, split=split):
                lines[episode] = EpisodeLine(id=episode, split=split, key=key, state="issued")
            case Running(episode=episode):
                change(episode, state="running")
            case Done(episode=episode, terminal=terminal):
                change(episode, state="done", terminal=terminal)
            case Scored(episode=episode, handle=handle, reward=reward, runs=runs):
                change(episode, state="scored", handle=handle, reward=reward, sampled_tokens=sum(run.sampled for run in runs))
            case Rejected(episode=episode, reason=reason):
                change(episode, state=f"rejected {reason}")
            case BatchMade(batch=batch):
                minibatches.update({mini.step: [fed.episode for fed in mini.episodes] for mini in batch.minibatches})
            case Trained(step=step):
                for episode in minibatches.get(step, ()):
                    change(episode, state="trained", step=step)
            case _:
                pass
    yield from lines.values()


def load(folder: RunFolder, episode: str) -> tuple[EpisodeRecord, list[Turn]]:
    """The episode with that id, or the only one whose id starts so. Raises ConfigError, StoreError."""
    known = {line.id: line for line in episodes(folder)}
    found = [episode] if episode in known else [id for id in known if id.startswith(episode)]
    if len(found) != 1:
        what = "no episode" if not found else f"{len(found)} episodes"
        raise ConfigError(f"{what} of {folder.name} start with {episode!r}.{did_you_mean(episode, known) if len(known) < 1000 else ''}")
    line = known[found[0]]
    # The ledger has no handle of an episode that failed, but its blob is kept if it was not run again.
    blob = folder.root / (line.handle or handle_of(line.id))
    if not line.handle and not blob.exists():
        raise ConfigError(f"episode {line.id} is {line.state}: it has no blob to show")
    return load_blob(blob)


def load_blob(path: Path) -> tuple[EpisodeRecord, list[Turn]]:
    """Raises StoreError."""
    try:
        with boundary(StoreError, "open it"), path.open("rb") as file:
            return read_record(file), list(read_turns(file))
    except StoreError as cause:
        raise StoreError(f"the episode blob {path} cannot be read: {cause}; `agentrl audit` finds all such blobs") from cause
