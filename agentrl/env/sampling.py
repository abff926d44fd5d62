"""How an agent wants to be sampled. The run's own sampling applies where nothing is said."""

from agentrl.config import Section


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
