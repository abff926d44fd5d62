"""Tools: functions that the model may call. Their schema is the function's signature and docstring, so there is nothing to keep in step.

What the model did wrong (an unknown tool, bad arguments, a `ToolError`, a call that takes too long) is told to the model and recorded. Any
other exception is a defect of the environment: it ends the episode as an error, because a policy must not be graded on our bugs.
"""

import inspect
import re
import time
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from agentrl.config import did_you_mean
from agentrl.env.call import Calls, Overtime
from agentrl.env.messages import tool_result
from agentrl.episode import ChatMessage, ToolCall, ToolCallRecord, ToolSpec
from agentrl.errors import EnvError, ToolError

if typing.TYPE_CHECKING:
    from agentrl.env.episode import AgentRun

F = TypeVar("F", bound=Callable[..., Any])
MAX_RESULT = 32_768
"""Characters of a result that reach the model; the middle of a longer one is cut."""
_MARK = "__agentrl_tool__"


def tool(function: F) -> F:
    """Offer a method (or function) to the model. It stays an ordinary function for everyone else.

    Parameters need type annotations; an `Args:` section describes them. A parameter `ep: Episode` is given by us and hidden from the model.
    """
    setattr(function, _MARK, True)
    return function


def is_tool(member: Any) -> bool:
    return bool(getattr(member, _MARK, False))


class Tool:
    """A function with its schema and the decoder of its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        summary, described = _docstring(inspect.getdoc(function) or "")
        hints = _hints(function)
        fields: list[Any] = []
        self.episode_parameter: str | None = None
        for parameter in inspect.signature(function).parameters.values():
            kind = hints.get(parameter.name)
            if parameter.name == "ep" or _is_episode(kind):
                self.episode_parameter = parameter.name
                continue
            fields.append(_field(self.name, parameter, kind, described.get(parameter.name)))
        self._arguments = msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)
        self.spec = ToolSpec(name=self.name, description=summary, parameters=_schema(self._arguments))

    def arguments(self, text: str) -> dict[str, Any]:
        """Checked and converted. Raises ToolError in words for the model."""
        try:
            plain = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, UnicodeError) as cause:
            raise ToolError(f"the arguments of {self.name} are not valid JSON: {cause}") from cause
        try:
            parsed = msgspec.convert(plain, self._arguments, strict=False)
        except msgspec.ValidationError as cause:
            raise ToolError(f"bad arguments for {self.name}: {cause}") from cause
        return {name: getattr(parsed, name) for name in parsed.__struct_fields__}


class Toolbox:
    """The tools of one agent run."""

    def __init__(self, tools: Sequence[Tool], *, calls: Calls, tool_s: float) -> None:
        self._tools = {each.name: each for each in tools}
        self._calls = calls
        self._tool_s = tool_s
        self.specs = tuple(each.spec for each in tools)

    async def answer(self, call: ToolCall, ep: "AgentRun", *, turn: str) -> ChatMessage:
        """Execute one call of the model. Raises EnvError when the tool itself is broken."""
        started, error, result = time.time(), "", ""
        try:
            result = bounded(as_text(await self._execute(call, ep)))
        except (ToolError, Overtime) as told:
            error = bounded(str(told) or type(told).__name__)
        except EnvError as defect:
            error = bounded(str(defect))
            raise
        finally:
            ep.record_call(
                ToolCallRecord(
                    id=call.id,
                    agent_run=ep.id,
                    turn=turn,
                    name=call.name,
                    arguments=bounded(call.arguments),
                    result=result,
                    error=error,
                    started_at=started,
                    ended_at=time.time(),
                )
            )
        return tool_result(call, f"Error: {error}" if error else result)

    async def _execute(self, call: ToolCall, ep: "AgentRun") -> Any:
        wanted = self._tools.get(call.name)
        if wanted is None:
            raise ToolError(f"there is no tool {call.name!r}.{did_you_mean(call.name, self._tools)}")
        arguments = wanted.arguments(call.arguments)
        if wanted.episode_parameter is not None:
            arguments[wanted.episode_parameter] = ep
        return await self._calls(f"tool {wanted.name}", partial(wanted.function, **arguments), deadline_s=self._tool_s)


def as_text(result: Any) -> str:
    """What the model reads: text as it is, None as nothing, plain data as JSON, anything else by str()."""
    if isinstance(result, str):
        return result
    if result is None:
        return ""
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError):
        return str(result)


def bounded(text: str, limit: int = MAX_RESULT) -> str:
    """The text, or its two ends with a note of what was cut. What no UTF-8 can say (lone surrogates) becomes "?"."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… [{len(text) - 2 * half} characters cut] …\n{text[-half:]}"
    return text.encode("utf-8", "replace").decode()


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    from agentrl.env.episode import Episode

    try:
        return typing.get_type_hints(function, localns={"Episode": Episode}, include_extras=True)
    except NameError as cause:
        raise EnvError(f"tool {function.__name__}: {cause}; its annotations must name types that the module knows at run time") from cause


def _is_episode(kind: Any) -> bool:
    from agentrl.env.episode import Episode

    return kind is Episode


def _field(owner: str, parameter: inspect.Parameter, kind: Any, description: str | None) -> Any:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise EnvError(f"tool {owner}: parameter {parameter.name!r} cannot be filled by name; give each argument a name of its own")
    if kind is None:
        raise EnvError(f"tool {owner}: parameter {parameter.name!r} needs a type annotation, such as {parameter.name}: str")
    if description:
        kind = typing.Annotated[kind, msgspec.Meta(description=description)]
    if parameter.default is parameter.empty:
        return (parameter.name, kind)
    return (parameter.name, kind, parameter.default)


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The arguments object itself at the top, other types it names under $defs."""
    try:
        schema = msgspec.json.schema(arguments)
    except TypeError as cause:
        raise EnvError(f"tool {arguments.__name__}: {cause}") from cause
    definitions: dict[str, Any] = schema.pop("$defs")
    top: dict[str, Any] = definitions.pop(arguments.__name__)
    top.pop("title", None)
    top.pop("description", None)
    return top | ({"$defs": definitions} if definitions else {})


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What comes before the `Args:` section, and what that section says of each parameter."""
    summary, _, rest = text.partition("\nArgs:\n")
    described: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        head = re.match(r"^ {1,4}(\w+)(?: *\([^)]*\))?: *(.*)$", line)
        if head:
            name = head[1]
            described[name] = head[2]
        elif name and line.strip():
            described[name] += " " + line.strip()
    return summary.strip(), described
