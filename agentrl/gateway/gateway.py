"""The gateway: sessions, their calls, and what becomes of an episode's turns. Knows nothing of HTTP.

It alone writes turns. A session lives from its opening until its episode is sealed or discarded; then its secret is worth nothing.
"""

import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import msgspec

from agentrl.episode import EpisodeRecord, Sealed, Turn
from agentrl.gateway.call import Call, Order
from agentrl.gateway.chat import Tools
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.control import GatewayStatus, SessionSpec
from agentrl.gateway.counters import Counters
from agentrl.gateway.journal import Journal
from agentrl.gateway.refusal import Refusal, invalid, unauthorized
from agentrl.gateway.relay import Relay
from agentrl.gateway.render import Renderer
from agentrl.gateway.session import OpenSession
from agentrl.gateway.stats import token_stats, without_undelivered
from agentrl.gateway.store import EpisodeStore
from agentrl.gateway.turns import TurnMaker

_SEALED_REMEMBERED = 4096
_log = logging.getLogger(__name__)


class Gateway:
    """See the module's docstring. `maker` makes the policy's turns. `tasks` outlives the gateway's callers: calls run in it."""

    def __init__(
        self,
        *,
        renderer: Renderer,
        maker: TurnMaker | Relay,
        relay: Relay,
        context_length: int | None,
        journal: Journal,
        store: EpisodeStore,
        config: GatewayConfig,
        counters: Counters,
        control_token: str,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self.config = config
        self.counters = counters
        self.context_length = context_length
        """Of the policy; None if an outside model plays it."""
        self.tools: dict[bytes, Tools] = {}
        """Tools by the bytes that they came as; sessions of one environment send the same."""
        self._renderer = renderer
        self._maker = maker
        self._relay = relay
        self._journal = journal
        self._store = store
        self._control_token = control_token.encode()
        self._tasks = tasks
        self._sessions: dict[str, OpenSession] = {}
        self._episodes: dict[str, list[OpenSession]] = {}
        self._sealed: OrderedDict[str, Sealed] = OrderedDict()
        self._sealing: dict[str, anyio.Lock] = {}

    def controls(self, token: str) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(token.encode(), self._control_token)

    def open(self, spec: SessionSpec) -> OpenSession:
        """A new session. Raises Refusal for an outside model without an endpoint."""
        if self.config.outside_model and spec.policy == "policy":
            spec = msgspec.structs.replace(spec, policy=f"openai/{self.config.outside_model}", trained=False)
        if spec.policy.startswith("openai/") and self.config.outside_url is None:
            raise invalid(f"agent model {spec.policy!r} needs gateway.outside_url, the endpoint that serves it")
        session = OpenSession(spec, secrets.token_urlsafe(24), self._renderer)
        self._sessions[session.secret] = session
        self._episodes.setdefault(spec.episode, []).append(session)
        return session

    def session(self, secret: str) -> OpenSession:
        """Raises Refusal (401) for secrets that are unknown or closed."""
        session = self._sessions.get(secret)
        if session is None:
            raise unauthorized()
        return session

    def start(self, session: OpenSession, order: Order) -> Call:
        """A new turn begins; it goes on whoever listens."""
        call = Call(secrets.token_hex(8), time.time())
        session.calls += 1
        session.in_flight.add(call)
        self.counters.calls += 1
        self._tasks.start_soon(self._run, session, order, call)
        return call

    async def _run(self, session: OpenSession, order: Order, call: Call) -> None:
        self.counters.in_flight += 1
        try:
            with call.scope:
                if session.outside is not None:
                    await self._relay.make(session, order, call)
                else:
                    await self._maker.make(session, order, call)
        except Exception as bug:
            _log.exception("a call of agent run %s met a defect of the gateway", session.spec.agent_run)
            call.end(Refusal(500, "internal_error", f"the gateway failed: {type(bug).__name__}; its log has the details"))
        finally:
            self.counters.in_flight -= 1
            session.in_flight.discard(call)
            if not call.ended:
                call.end(unauthorized())
            if call.refusal is not None:
                self.counters.error(call.refusal.code)

    def leave(self, session: OpenSession, call: Call, *, delivered: bool) -> None:
        """A listener went away. A call that nobody waits for is cancelled, unless its client comes back soon."""
        call.listeners -= 1
        if delivered:
            call.delivered = True
            session.undelivered.discard(call.turn)
            return
        if not call.delivered:
            call.delivered = False
            session.undelivered.add(call.turn)
        if call.listeners == 0 and not call.ended:
            self._tasks.start_soon(self._linger, call)

    async def _linger(self, call: Call) -> None:
        await anyio.sleep(self.config.linger_s)
        if call.listeners == 0:
            call.scope.cancel()

    async def seal(self, record: EpisodeRecord) -> Sealed:
        """Close the episode's sessions and write its blob. Sealing again gives the same answer; after a failure it tries again."""
        async with self._alone(record.id):
            again = self._sealed.get(record.id)
            if again is not None:
                return again
            sessions = await self._close(record.id)
            turns = self._turns(record.id, sessions)
            handle, nbytes = await self._store.put(record, turns)
            sealed = Sealed(episode=record.id, handle=handle, nbytes=nbytes, runs=token_stats(turns, sessions))
            self._forget(record.id)
            self._sealed[record.id] = sealed
            while len(self._sealed) > _SEALED_REMEMBERED:
                self._sealed.popitem(last=False)
            return sealed

    async def discard(self, episode: str) -> None:
        """Close the episode's sessions and forget its turns."""
        async with self._alone(episode):
            await self._close(episode)
            self._forget(episode)

    @asynccontextmanager
    async def _alone(self, episode: str) -> AsyncIterator[None]:
        """One at a time for each episode."""
        lock = self._sealing.setdefault(episode, anyio.Lock(fast_acquire=True))
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():  # nobody holds it, and so nobody waits
                self._sealing.pop(episode, None)

    async def _close(self, episode: str) -> list[OpenSession]:
        """Its sessions; none of them takes or makes a call any more."""
        sessions = self._episodes.get(episode, [])
        for session in sessions:
            self._sessions.pop(session.secret, None)
            for call in list(session.in_flight):
                call.scope.cancel()
        for session in sessions:
            for call in list(session.in_flight):
                await call.end_reached()
        return sessions

    def _forget(self, episode: str) -> None:
        self._episodes.pop(episode, None)
        self._journal.drop(episode)

    def _turns(self, episode: str, sessions: list[OpenSession]) -> list[Turn]:
        """Each after its parent; those of a gateway that died before this one first."""
        mine = [turn for session in sessions for turn in without_undelivered(session)]
        if episode not in self._journal.inherited:
            return mine
        known = {turn.id for turn in mine}
        return [turn for turn in self._journal.read(episode) if turn.id not in known] + mine

    def status(self) -> GatewayStatus:
        counters = self.counters
        return GatewayStatus(
            sessions=len(self._sessions),
            calls=counters.calls,
            in_flight=counters.in_flight,
            placements=dict(counters.placements),
            replaced_wishes=dict(counters.wishes),
            errors=dict(counters.errors),
        )
