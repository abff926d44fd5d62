"""From sampled ids to an assistant's message: reasoning first, then text and tool calls.

Order matters: what looks like a tool call inside thinking is thinking. Words that are single tokens are recognised by their id alone, so
ordinary tokens that spell `<tool_call>` are text; words without a token of their own are found in the text. The same machine serves
streamed and whole replies. A call that does not parse stays in the text, where the model and the scaffold can see it, and is counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from agentrl.episode import ChatMessage, FinishReason, ToolCall
from agentrl.gateway.format import Marks, ReplyFormat
from agentrl.gateway.pieces import Detokenizer, Piece, StopScan, overlap, text_pieces
from agentrl.gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply. One field is set."""

    reasoning: str = ""
    content: str = ""
    call: ToolCall | None = None


class Parser(Protocol):
    """Reads one reply."""

    malformed: int
    """Tool calls that stayed text."""

    @property
    def stopped(self) -> bool:
        """A stop string was met; what follows it is not part of the reply."""
        ...

    def feed(self, ids: Sequence[int]) -> list[Delta]: ...

    def finish(self, reason: FinishReason) -> list[Delta]: ...

    def reply(self) -> ChatMessage: ...


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    parameters: msgspec.Raw = msgspec.Raw()
    """What some models write for arguments."""


_call_decoder = msgspec.json.Decoder(_Call)


def read_call(text: str, call_id: str) -> ToolCall | None:
    """The call that a JSON text asks for, its arguments exactly as written; None if it asks for none."""
    try:
        call = _call_decoder.decode(text.strip())
        arguments = bytes(call.parameters or call.arguments).decode()
        if arguments.startswith('"'):
            arguments = msgspec.json.decode(arguments, type=str)
        if not isinstance(msgspec.json.decode(arguments), dict):
            return None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return ToolCall(id=call_id, name=call.name, arguments=arguments) if call.name else None


class ReplyParser:
    """The parser for templates whose words are in `format`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: ReplyFormat,
        *,
        turn: str,
        tools: bool,
        stops: Sequence[str] = (),
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._format = format
        self._turn = turn
        self._tools = tools and format.calls is not None
        words = [*_words(format.reasoning), *(_words(format.calls) if self._tools else ())]
        self._marks = {tokenizer.added[word]: word for word in words if word in tokenizer.added}
        self._by_id = frozenset(self._marks.values())
        self._end_ids = end_ids
        self._text = Detokenizer(tokenizer)
        self._scan = StopScan(stops)
        self._state: Literal["start", "reasoning", "content", "call"] = "reasoning" if format.opened else "start"
        self._held = ""
        self._call = ""
        self._space = ""
        self._strip = format.opened
        self._out: list[Delta] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self.malformed = 0

    @property
    def stopped(self) -> bool:
        return self._scan.matched

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        for item in self._scan.feed(self._items(ids)):
            self._take(item)
        return self._drain()

    def finish(self, reason: FinishReason) -> list[Delta]:
        for item in self._scan.feed(text_pieces(self._text.flush())):
            self._take(item)
        for item in self._scan.flush():
            self._take(item)
        held, self._held = self._held, ""
        if self._state == "start":
            self._state = "content"
        self._emit(held)
        if self._state == "call":
            self._end_call(closed=False, believe=reason == "stop" and not self.stopped)
        if self._state == "content" and not self._calls:
            self._say(self._space)
        return self._drain()

    def reply(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content="".join(self._content),
            reasoning="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls),
        )

    def _items(self, ids: Sequence[int]) -> Iterator[Piece]:
        if not self._marks and not (ids and ids[-1] in self._end_ids):
            yield from text_pieces(self._text.feed(ids))
            return
        run: list[int] = []
        for token in ids:
            if token in self._end_ids:
                continue
            if token not in self._marks:
                run.append(token)
                continue
            yield from text_pieces(self._text.feed(run) + self._text.flush())
            run = []
            yield Piece(self._marks[token], True)
        yield from text_pieces(self._text.feed(run))

    def _take(self, item: Piece) -> None:
        if item.mark and self._state == "start" and item.text != self._expected():
            self._state = "content"
        if item.mark and item.text == self._expected():
            held, self._held = self._held, ""
            self._emit(held if self._state != "start" else "")
            self._cross()
            return
        self._held += item.text
        while self._advance():
            pass

    def _expected(self) -> str | None:
        """The word that would end the current state."""
        reasoning, calls = self._format.reasoning, self._format.calls
        if self._state == "start":
            return reasoning.open if reasoning is not None and not self._held.strip() else None
        if self._state == "reasoning":
            return reasoning.close if reasoning is not None else None
        if calls is None or not self._tools:
            return None
        return calls.open if self._state == "content" else calls.close

    def _advance(self) -> bool:
        """Use up held text; True if a word was crossed and there may be more."""
        if self._state == "start":
            return self._begin()
        word = self._expected()
        if word is None or word in self._by_id:
            text, self._held = self._held, ""
            self._emit(text)
            return False
        before, found, after = self._held.partition(word)
        if found:
            self._held = after
            self._emit(before)
            self._cross()
            return True
        hold = overlap(self._held, word)
        text, self._held = self._held[: len(self._held) - hold], self._held[len(self._held) - hold :]
        self._emit(text)
        return False

    def _begin(self) -> bool:
        """Only white space may stand before the reasoning; anything else means there is none."""
        reasoning = self._format.reasoning
        text = self._held.lstrip()
        if reasoning is not None and reasoning.open not in self._by_id and text.startswith(reasoning.open):
            self._held = text[len(reasoning.open) :]
            self._cross()
            return True
        if reasoning is not None and (not text or (reasoning.open not in self._by_id and reasoning.open.startswith(text))):
            return False
        self._state = "content"
        return True

    def _cross(self) -> None:
        if self._state == "start":
            self._state, self._strip = "reasoning", True
        elif self._state == "reasoning":
            self._state, self._strip, self._space = "content", True, ""
        elif self._state == "content":
            self._state, self._call = "call", ""
        else:
            self._end_call(closed=True, believe=True)
            self._state = "content"

    def _end_call(self, *, closed: bool, believe: bool) -> None:
        calls = self._format.calls
        assert calls is not None
        call = read_call(self._call, f"call_{self._turn}_{len(self._calls)}") if believe else None
        if call is not None:
            self._calls.append(call)
            self._out.append(Delta(call=call))
            self._space, self._strip = "", True
            return
        self.malformed += 1
        self._say(self._space + calls.open + self._call + (calls.close if closed else ""))
        self._space = ""

    def _emit(self, text: str) -> None:
        if self._state == "call":
            self._call += text
            return
        if self._strip:
            text = text.lstrip()
        if not text:
            return
        self._strip = False
        body = text.rstrip()
        if body:
            self._say(self._space + body)
            self._space = ""
        self._space += text[len(body) :]

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._state == "reasoning":
            self._reasoning.append(text)
            self._out.append(Delta(reasoning=text))
        else:
            self._content.append(text)
            self._out.append(Delta(content=text))

    def _drain(self) -> list[Delta]:
        out, self._out = self._out, []
        return out


def _words(marks: Marks | None) -> tuple[str, ...]:
    return () if marks is None else (marks.open, marks.close)
