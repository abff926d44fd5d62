"""Whatever a scaffold does to its history, the gateway's books keep the four invariants."""

import json
import random
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.gateway.call import Call, Outcome
from agentrl.gateway.chat import ChatRequest
from agentrl.gateway.chat_answer import completion
from agentrl.gateway.control import SessionSpec
from agentrl.gateway.session import OpenSession
from agentrl.testing.gateway import ScriptedPolicy, scripted_gateway
from tests.integration.gateway_books import check_books

TOOLS: Any = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
PARTS = [
    "<think>\n",
    "\n</think>\n\n",
    '<tool_call>\n{"name": "f", "arguments": {"x" :1}}\n</tool_call>',
    "<tool_call>",
    "é🦊",
    " ",
    "\n",
    "ok",
]
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


def script(seed: int) -> Any:
    rng = random.Random(seed)
    return lambda prompt: "".join(rng.choices(PARTS, k=rng.randint(0, 6)))


class Scaffold:
    """Keeps threads of messages and does to them what scaffolds do."""

    def __init__(self, policy: ScriptedPolicy, rng: random.Random) -> None:
        self.gateway = policy.serving.gateway
        self.session: OpenSession = self.gateway.open(SessionSpec(episode="e", agent_run="main"))
        self.threads: list[Messages] = [[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]]
        self.rng = rng

    async def step(self, action: str) -> None:
        thread = self.rng.choice(self.threads)
        if action == "fork":
            thread = [dict(message) for message in thread[: self.rng.randint(1, len(thread))]]
            self.threads.append(thread)
        if action == "edit":
            self.rng.choice(thread)["content"] = self.rng.choice(["edited", "", None])
        if action == "forget":
            for message in thread:
                message.pop("reasoning_content", None)
        if action in ("fork", "extend"):
            thread += self.following(thread)
        bodies = [thread, *([thread] if action == "twice" else [])]
        calls = [self.start(body) for body in bodies]
        for call in calls:
            await call.end_reached()
        outcome = calls[-1].outcome
        assert isinstance(outcome, Outcome), calls[-1].refusal
        thread.append(json.loads(completion(calls[-1], outcome, "m"))["choices"][0]["message"])

    def following(self, thread: Messages) -> Messages:
        calls = thread[-1].get("tool_calls") or []
        results: Messages = [{"role": "tool", "tool_call_id": call["id"], "content": self.rng.choice(PARTS)} for call in calls]
        return (
            results
            if results and self.rng.random() < 0.8
            else [*results, {"role": "user", "content": self.rng.choice([*PARTS, "<|im_end|>"])}]
        )

    def start(self, messages: Messages) -> Call:
        body = {"messages": messages, "tools": TOOLS, "max_tokens": self.rng.choice([3, 40, 4000])}
        order = ChatRequest(json.dumps(body).encode()).order(self.session.known, self.gateway.tools)
        return self.gateway.start(self.session, order)


ACTIONS = st.sampled_from(["extend", "extend", "extend", "fork", "edit", "forget", "twice", "again"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=1, max_size=15), seed=st.integers(0, 2**32))
async def test_books_stay_true_whatever_scaffolds_do(folder: Path, actions: list[str], seed: int) -> None:
    async with scripted_gateway(folder, script(seed)) as policy:
        scaffold = Scaffold(policy, random.Random(seed))
        with anyio.fail_after(60):
            for action in actions:
                await scaffold.step(action)
        _, turns = await policy.seal()
        check_books(policy, turns)
        assert len(turns) == len(actions) + actions.count("twice")
        extended_only = set(actions) <= {"extend"}
        assert not extended_only or [turn.placement for turn in turns] == ["root", *["exact"] * (len(turns) - 1)]
