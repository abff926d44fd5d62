"""From the feed's handles to the rows of one optimizer update, refused unless they are exactly what the controller counted.

The controller fixed the denominator from the gateway's counts, the trainer finds the tokens in the blobs. If the two differ, one of them is
wrong about what is trained, and no mean over the wrong number may be taken silently.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from agentrl.episode import Path, Row, TokenTrie, Turn, read_record, read_turns, row
from agentrl.errors import StoreError, TrainError, boundary
from agentrl.ledger.feed import FeedEpisode, FeedRun, Minibatch

OpenBlob = Callable[[str], BinaryIO]
"""A blob's handle to its open file, at its start."""


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A row with something to train."""

    row: Row
    kv_oldest_version: NDArray[np.int64]
    """[tokens] oldest policy_version whose key/value entries the token's turn attended to"""


def read_rows(minibatch: Minibatch, open_blob: OpenBlob, *, oldest_version: int) -> list[TrainRow]:
    """Raises TrainError if the rows do not hold minibatch.trained_tokens trained tokens, or hold what cannot be replayed."""
    rows = [found for episode in minibatch.episodes for found in _episode_rows(episode, open_blob, oldest_version)]
    trained = sum(tokens_by_run(rows).values())
    if trained != minibatch.trained_tokens:
        raise TrainError(
            f"step {minibatch.step}: the controller counted {minibatch.trained_tokens} trained tokens since version {oldest_version}, "
            f"and the blobs of its {len(minibatch.episodes)} episodes hold {trained}; `agentrl audit` on the run names those that differ"
        )
    return rows


def tokens_by_run(rows: Iterable[TrainRow]) -> dict[str, int]:
    """Trained tokens of each agent run, over all its paths."""
    counts: Counter[str] = Counter()
    for found in rows:
        counts[found.row.agent_run] += int(found.row.trained.sum())
    return dict(counts)


def _episode_rows(episode: FeedEpisode, open_blob: OpenBlob, oldest_version: int) -> Iterator[TrainRow]:
    fed = {run.agent_run: run for run in episode.runs}
    tries = {agent_run: TokenTrie() for agent_run in fed}
    for turn in _turns(episode, open_blob):
        if turn.agent_run in tries:
            tries[turn.agent_run].add(turn)
    for agent_run, trie in tries.items():
        for path in trie.paths():
            found = _train_row(path, fed[agent_run], oldest_version)
            if found.row.trained.any():
                yield found


def _turns(episode: FeedEpisode, open_blob: OpenBlob) -> list[Turn]:
    try:
        with boundary(StoreError, "open it"):
            opened = open_blob(episode.handle)
        with opened as blob:
            record = read_record(blob)
            if record.id != episode.episode:
                raise StoreError(f"it holds episode {record.id}, and not {episode.episode} as the feed says")
            return list(read_turns(blob))
    except StoreError as cause:
        raise StoreError(
            f"the blob {episode.handle!r} of episode {episode.episode} cannot be trained on: {cause}; "
            "resume from a checkpoint before the disk's fault, or restore the blob"
        ) from cause


def _train_row(path: Path, run: FeedRun, oldest_version: int) -> TrainRow:
    made = row(
        path,
        agent_run=run.agent_run,
        group=run.group,
        policy=run.policy,
        advantage=run.advantage,
        oldest_version=oldest_version,
    )
    if not np.isfinite(run.advantage):
        raise TrainError(f"agent run {run.agent_run} has the advantage {run.advantage}; rewards must be finite numbers")
    for index, segment in enumerate(path.segments):
        if bool(made.trained[made.turn == index].any()):
            _check_replayable(segment.turn)
    oldest = np.array([segment.turn.kv_oldest_version for segment in path.segments], np.int64)
    return TrainRow(row=made, kv_oldest_version=oldest[made.turn])


def _check_replayable(turn: Turn) -> None:
    sampling = turn.sampling
    if sampling.top_p != 1 or sampling.top_k != 0 or sampling.min_p != 0:
        raise TrainError(
            f"turn {turn.id} was sampled with top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}, and the trainer "
            "does not replay the surviving tokens yet; sample with 1.0, 0 and 0.0"
        )
    if turn.routing is not None:
        raise TrainError(f"turn {turn.id} recorded expert routing, which the trainer does not replay yet; train a dense model")
