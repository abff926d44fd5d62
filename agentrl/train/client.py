"""The trainer's side of its talk with the controller: plain calls that block, as the trainer has nothing else to do meanwhile.

Each call opens a fresh connection. There are a few of them in a step, and a pooled socket that went stale between two steps would cost one.
"""

from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from agentrl.errors import TrainError
from agentrl.ledger.feed import Batch, CheckpointReport, StepReport, Stop
from agentrl.weights.update import WeightUpdate

SILENCE_S = 300.0
"""The controller answers a long poll well within this, with a batch or with none yet; if it does not, it is gone."""


class ControllerClient:
    """Raises TrainError when the controller refuses, is silent or is gone. May be used from two threads."""

    def __init__(self, base_url: str, token: str, *, silence_s: float = SILENCE_S) -> None:
        """`base_url` without a trailing slash; `token` is the run's."""
        self._http = httpx.Client(
            base_url=base_url,
            headers={"authorization": f"Bearer {token}", "content-type": "application/msgpack"},
            timeout=httpx.Timeout(silence_s, connect=10.0),
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    def next_batch(self, meanwhile: Callable[[], None]) -> Batch | Stop:
        """Wait for the next batch, however long rolling it out takes. `meanwhile` is called before each poll, and may raise."""
        while True:
            meanwhile()
            reply = self._post("/trainer/batch", {})
            if reply.status_code != 204:
                return msgspec.msgpack.decode(reply.content, type=Batch | Stop)

    def report_step(self, report: StepReport) -> None:
        self._post("/trainer/step", report)

    def report_ready(self, update: WeightUpdate) -> None:
        self._post("/trainer/ready", update)

    def report_checkpoint(self, report: CheckpointReport) -> None:
        self._post("/trainer/checkpoint", report)

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, body: Any) -> httpx.Response:
        try:
            reply = self._http.post(path, content=msgspec.msgpack.encode(body))
        except httpx.HTTPError as cause:
            raise TrainError(
                f"the controller at {self._http.base_url} did not answer POST {path} ({type(cause).__name__}: {cause}); look at its log"
            ) from cause
        if reply.status_code not in (200, 204):
            raise TrainError(f"the controller refused POST {path} with {reply.status_code}: {reply.text[:500]}")
        return reply
