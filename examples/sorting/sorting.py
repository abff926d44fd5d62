"""Put digits in order: an environment in one file, small enough for a tiny model to learn in minutes."""

from agentrl import Agent, Env, Episode, Limits, Task
from agentrl.env import assistant


class Sorting(Env):
    """Put four digits in order."""

    agent = Agent(limits=Limits(turns=1, tokens_per_turn=16))

    def tasks(self, split):
        for index in range(10_000):
            if (index % 10 == 9) == (split == "eval"):
                digits = f"{index * 6_121 % 10_000:04d}"
                yield Task(f"Sort {' '.join(digits)}.", answer=" ".join(sorted(digits)))

    async def reward(self, task: Task, ep: Episode) -> float:
        return float(ep.text == task.answer)

    def gold(self, task, rng):
        return task.answer

    def demonstrations(self, task, rng):
        """Right half of the time, so that a model which imitates them has something left to learn."""
        digits = task.answer.split()
        if rng.random() < 0.5:
            rng.shuffle(digits)
        return [*self.opening(task), assistant(" ".join(digits))]
