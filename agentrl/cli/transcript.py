"""An episode for the eye: who said what, what was sampled, what was trained."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from agentrl.episode import EpisodeRecord, Turn
from agentrl.gateway.tokenizer import Tokenizer

SAMPLED = "green"
UNTRAINED = "yellow"
PROMPT = "dim"


def transcript(record: EpisodeRecord, turns: Sequence[Turn], tokenizer: Tokenizer | None) -> Iterator[Text]:
    """With a tokenizer: the tokens themselves, coloured. Else the messages."""
    yield Text(
        f"episode {record.id}  task {record.key.task_id}  member {record.key.member}  {record.split}  {record.env} {record.env_version}"
    )
    for run in record.agent_runs:
        own = [turn for turn in turns if turn.agent_run == run.id]
        # The turns know who really spoke: an outside model may have played the policy.
        policy = own[0].policy if own else run.policy
        trained = run.trained and policy == run.policy
        yield Text(f"\n── {run.agent} ({policy}{'' if trained else ', not trained'})  {run.terminal}", style="bold")
        for turn in own:
            yield from _head(turn)
            yield _tokens(turn, tokenizer) if tokenizer is not None else _messages(turn)
        parts = "  ".join(f"{name} {value:g}" for name, value in {**run.rewards, **run.metrics}.items())
        yield Text(f"reward {'none' if run.reward is None else f'{run.reward:g}'}  {parts}", style="bold")
    for error in record.errors:
        yield Text(f"error in {error.where}: {error.kind}: {error.message}", style="red")
    if tokenizer is not None:
        yield Text.assemble(("prompt ", PROMPT), ("sampled and trainable ", SAMPLED), ("sampled, masked", UNTRAINED))


def _head(turn: Turn) -> Iterator[Text]:
    versions = sorted({span.policy_version for span in turn.spans})
    trained = int(turn.mask.sum())
    yield Text(
        f"\nturn {turn.id}  {turn.placement}  {len(turn.prompt_ids)} prompt + {len(turn.completion_ids)} sampled ({trained} trainable)  "
        f"{turn.finish_reason}  version {', '.join(map(str, versions)) or '-'}",
        style="cyan",
    )


def _tokens(turn: Turn, tokenizer: Tokenizer) -> Text:
    text = Text(tokenizer.decode(turn.prompt_ids.tolist()), style=PROMPT)
    # Stretches of equal mask are decoded together: one character may be several tokens.
    start = 0
    for stop in range(1, len(turn.completion_ids) + 1):
        if stop == len(turn.completion_ids) or turn.mask[stop] != turn.mask[start]:
            ids = turn.completion_ids[start:stop].tolist()
            text.append(tokenizer.decode(ids), style=SAMPLED if turn.mask[start] else UNTRAINED)
            start = stop
    return text


def _messages(turn: Turn) -> Text:
    text = Text()
    for message in turn.messages:
        text.append(f"{message.role}: {message.content}\n", style=PROMPT)
    if turn.reply is not None:
        calls = "".join(f" → {call.name}({call.arguments})" for call in turn.reply.tool_calls)
        text.append(f"assistant: {turn.reply.content}{calls}", style=SAMPLED)
    return text
