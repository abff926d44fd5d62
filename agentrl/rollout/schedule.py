"""The arithmetic of steps, batches and publications. Plain numbers, so that policies can reason about what has not happened yet.

A batch always has `minibatches` steps, also when too few of its groups were kept to fill them: a step without tokens makes no update but
counts, is reported and is published on schedule. So the number of steps left says how many groups are needed, and nobody waits for a
version that is not going to come.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Of a whole run."""

    steps: int
    groups_per_step: int
    """Closed groups in a batch."""
    minibatches: int = 1
    """Steps made of a batch."""
    publish_every: int = 1
    """Steps between two publications; the last step is published too."""

    def publications(self, *, after: int, through: int) -> int:
        """How many publications follow from steps after+1 … through."""
        return max(0, self._published(through) - self._published(after))

    def _published(self, step: int) -> int:
        last = step >= self.steps and self.steps % self.publish_every != 0
        return min(step, self.steps) // self.publish_every + last

    def batches_left(self, steps_made: int) -> int:
        return -(-max(0, self.steps - steps_made) // self.minibatches)

    def batch_steps(self, steps_made: int) -> range:
        """The steps of the next batch; the last one may be cut short."""
        return range(steps_made + 1, min(steps_made + self.minibatches, self.steps) + 1)
