"""What a resume takes back, as a rule over positions.

A resume from the checkpoint of step N does not edit the journal: it says that, of the entries before it, everything that speaks of a step
after N never happened. Episodes trained then are scored again, batches that no step remains of give their groups back, and what was
sampled, sealed, rejected or published stands.
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from agentrl.ledger.entry import AnyEntry, BatchMade, Checkpointed, Evaluated, Resumed, Trained
from agentrl.ledger.journal import Recorded, Resume


def resumes(journal: Iterable[Recorded]) -> list[Resume]:
    """Every resume of a journal, in order."""
    return [Resume(recorded.position, recorded.entry.step) for recorded in journal if isinstance(recorded.entry, Resumed)]


class Revert:
    """Tells standing entries from those taken back."""

    def __init__(self, resumes: Iterable[Resume]) -> None:
        ordered = list(resumes)
        self._positions = [resume.position for resume in ordered]
        self._floors: list[float] = [float("inf")]
        for resume in reversed(ordered):
            self._floors.insert(0, min(resume.step, self._floors[0]))

    def last_step(self, position: int) -> float:
        """The last step that stands of those spoken of at `position`."""
        return self._floors[bisect_right(self._positions, position)]

    def standing(self, recorded: Recorded) -> AnyEntry | None:
        """The entry, or the part of a batch that stands, or None."""
        entry, last = recorded.entry, self.last_step(recorded.position)
        match entry:
            case Trained() | Checkpointed() | Resumed():
                return entry if entry.step <= last else None
            case Evaluated():
                # Its number stays used (episodes bear it), but the step is to be evaluated anew.
                return entry if entry.step <= last else msgspec.structs.replace(entry, step=-1)
            case BatchMade():
                kept = sum(minibatch.step <= last for minibatch in entry.batch.minibatches)
                if kept == len(entry.batch.minibatches):
                    return entry
                if kept == 0:
                    return None
                batch = msgspec.structs.replace(entry.batch, minibatches=entry.batch.minibatches[:kept])
                return msgspec.structs.replace(entry, batch=batch, groups=entry.groups[:kept])
        return entry
