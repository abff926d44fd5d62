"""How an agent wants to be sampled. The run's own sampling applies where nothing is said."""

from agentrl.config import Section
from agentrl.errors import EnvError


class SamplingOptions(Section, frozen=True):
    """None: the run's own. A trained agent may only change the temperature: its logprobs must be those of the full distribution."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None

    def over(self, below: "SamplingOptions | None") -> "SamplingOptions":
        """These options where they are set, else those below."""
        if below is None:
            return self
        return SamplingOptions(
            **{name: mine if (mine := getattr(self, name)) is not None else getattr(below, name) for name in self.__struct_fields__}
        )

    def refuse_untrainable(self, agent: str) -> None:
        """Raises EnvError for what the trainer cannot replay."""
        if self.temperature == 0:
            raise EnvError(f"agent {agent}: greedy turns cannot be trained; give a temperature above 0, or Agent(train=False)")
        if self.top_p not in (None, 1.0) or self.top_k not in (None, 0) or self.min_p not in (None, 0.0):
            raise EnvError(
                f"agent {agent}: top_p, top_k and min_p change the distribution that is trained; leave them out, or use Agent(train=False)"
            )
