"""The controller's side of preparation."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from agentrl import errors
from agentrl.errors import AgentRLError, ProcessError
from agentrl.runtime import prepare_process
from agentrl.runtime.prepare_process import Doing, Line, Prepared, PrepareSpec, Refused
from agentrl.runtime.process import child, ended, failure

_decoder = msgspec.json.Decoder(Line)


async def prepare(spec: PrepareSpec, *, log: Path, doing: Callable[[str, float | None], None]) -> Prepared:
    """Run the preparation process to its end. Raises what it refused, by name; ProcessError if it died."""
    async with child("preparation", prepare_process.MODULE, spec, log=log) as process:
        async for text in process.lines():
            match _decoder.decode(text):
                case Doing(what, fraction):
                    doing(what, fraction)
                case Prepared() as prepared:
                    return prepared
                case Refused(kind, message):
                    error = getattr(errors, kind, AgentRLError)
                    raise error(message)
        status = await process.wait()
    raise ProcessError(failure("preparation", ended(status), log))
