"""What clients send: secrets in every place, sampling wishes, limits, and input that is wrong in every way. Errors are the dialect's."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.control import Session
from agentrl.testing.gateway import CONTROL_TOKEN, ScriptedPolicy, scripted_gateway
from agentrl.testing.model import CHATML

USER: Any = {"role": "user", "content": "x"}
BODY: Any = {"model": "gpt-5", "messages": [USER]}
TOOL: Any = {"type": "function", "function": {"name": "calc"}}


async def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as client, client.post(url, data=data, headers=sent) as answer:
        return answer.status, await answer.json()


async def call(session: Session, body: Any = BODY) -> tuple[int, Any]:
    return await post(f"{session.base_url}/chat/completions", body)


async def refused(session: Session, body: Any) -> tuple[int, str, str]:
    status, answer = await call(session, body)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return status, answer["error"]["code"], answer["error"]["message"]


async def test_the_secret_is_taken_from_every_place_that_clients_use(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        secret = (await policy.open()).secret
        flat = f"{policy.url}/v1/chat/completions"
        for headers in ({"Authorization": f"Bearer {secret}"}, {"x_api_key": secret}, {"x_goog_api_key": secret}):
            assert (await post(flat, BODY, **headers))[0] == 200
        for path in (f"/s/{secret}/v1/chat/completions", f"/s/{secret}/chat/completions"):
            status, answer = await post(policy.url + path, BODY, Authorization="Bearer whatever")
            assert (status, answer["model"]) == (200, "gpt-5")


async def test_unknown_and_closed_secrets_look_the_same(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        closed = (await policy.open()).secret
        await policy.discard()
        url = f"{policy.url}/v1/chat/completions"
        answers = [await post(url, BODY, Authorization=f"Bearer {secret}") for secret in (closed, "never-was", "")] + [
            await post(url, BODY)
        ]
        assert [status for status, _ in answers] == [401] * 4
        assert all(answer == answers[0][1] for _, answer in answers)
        assert answers[0][1]["error"]["code"] == "invalid_api_key"


async def test_control_needs_the_runs_token(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        secret = (await policy.open()).secret
        for token in ("", "wrong", secret, "é"):
            for name in ("sessions", "seal", "discard"):
                assert (await post(f"{policy.url}/control/{name}", b"", Authorization=f"Bearer {token}"))[0] == 401
        status, answer = await post(f"{policy.url}/control/sessions", b"\xc1", Authorization=f"Bearer {CONTROL_TOKEN}")
        assert (status, answer["error"]["code"]) == (400, "invalid_type")
        assert (await post(f"{policy.url}/v1/chat/completions", BODY, Authorization=f"Bearer {CONTROL_TOKEN}"))[0] == 401


async def test_probes_models_and_paths_that_are_not_there(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc", context_length=777) as policy:
        session = await policy.open()
        async with aiohttp.ClientSession() as client:
            async with client.head(f"{policy.url}/api/hello") as answer:
                assert answer.status == 200
            for base in (f"{policy.url}/v1", session.base_url):
                async with client.get(f"{base}/models") as answer:
                    (model,) = (await answer.json())["data"]
                    assert (model["id"], model["context_length"]) == ("policy", 777)
                async with client.get(f"{base}/models/org/name") as answer:
                    assert (await answer.json())["id"] == "org/name"
            for method, path in (("POST", "/v1/nope"), ("GET", "/v1/chat/completions"), ("DELETE", "/x")):
                async with client.request(method, policy.url + path) as answer:
                    assert answer.status == 404
                    assert (await answer.json())["error"]["code"] == "not_found"


async def test_sampling_wishes_are_recorded_and_replaced(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        session = await policy.open(temperature=0.7, seed=5)
        wishes = {"temperature": 0.1, "top_p": 0.9, "top_k": 64, "min_p": 0.1, "seed": 3, "frequency_penalty": 1, "logit_bias": {"1": 5}}
        for more in (wishes, {"temperature": 0.7, "top_p": 1.0, "presence_penalty": 0}, {"logprobs": True, "parallel_tool_calls": False}):
            assert (await call(session, {**BODY, **more}))[0] == 200
        assert (await policy.status()).replaced_wishes == {
            **dict.fromkeys(wishes, 1),
            "logprobs": 1,
            "parallel_tool_calls": 1,
        }
        _, turns = await policy.seal()
        assert {(turn.sampling.temperature, turn.sampling.top_p, turn.sampling.top_k) for turn in turns} == {(0.7, 1.0, 0)}
        assert len({turn.sampling.seed for turn in turns}) == 3, "resamples must not repeat each other"


async def test_limits_are_clamped_and_an_overflow_is_the_dialects(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "a" * 99, context_length=64) as policy:
        session = await policy.open(tokens_per_turn=50)
        status, answer = await call(session, {**BODY, "max_tokens": 128_000})
        prompt = answer["usage"]["prompt_tokens"]
        assert (status, answer["usage"]["completion_tokens"]) == (200, 64 - prompt)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (await call(session, {**BODY, "max_completion_tokens": 7}))[1]["usage"]["completion_tokens"] == 7
        long: Any = {"messages": [{"role": "user", "content": "y" * 64}]}
        status, code, message = await refused(session, long)
        assert (status, code) == (400, "context_length_exceeded")
        assert "64 tokens" in message
        assert (await call(session, {**long, "stream": True}))[1]["error"]["code"] == "context_length_exceeded"


async def test_a_session_spends_no_more_than_its_tokens(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "a" * 9) as policy:
        session = await policy.open(tokens=12)
        assert [(await call(session))[1]["usage"]["completion_tokens"] for _ in range(2)] == [10, 2]
        assert (await refused(session, BODY))[:2] == (400, "context_length_exceeded")


async def test_tool_choice_none_and_auto_are_served_and_others_refused(tmp_path: Path) -> None:
    said = '<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call>'
    async with scripted_gateway(tmp_path, lambda prompt: said) as policy:
        session = await policy.open()
        body = {**BODY, "tools": [TOOL]}
        assert (await call(session, {**body, "tool_choice": "auto"}))[1]["choices"][0]["finish_reason"] == "tool_calls"
        message = (await call(session, {**body, "tool_choice": "none"}))[1]["choices"][0]["message"]
        assert (message["content"], message.get("tool_calls")) == (said, None)
        for choice in ("required", {"type": "function", "function": {"name": "calc"}}):
            status, code, text = await refused(session, {**body, "tool_choice": choice})
            assert (status, code) == (400, "unsupported_value")
            assert "auto" in text
        assert (await refused(session, {**BODY, "response_format": {"type": "json_object"}}))[1] == "unsupported_value"


async def test_tools_on_a_template_without_them_say_what_to_set(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc", template=CHATML) as policy:
        session = await policy.open()
        assert "model.tool_format=hermes" in (await refused(session, {**BODY, "tools": [TOOL]}))[2]
        assert (await call(session, {**BODY, "tools": []}))[0] == 200


BAD: list[tuple[Any, str]] = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', "invalid_type"),
    (b'{"x": ' + b"[" * 100_000, "invalid_json"),
    ([], "invalid_type"),
    ({"messages": None}, "invalid_type"),
    ({"messages": []}, "empty_array"),
    ({"messages": [1]}, "invalid_type"),
    ({"messages": [{"content": "x"}]}, "invalid_type"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "invalid_type"),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_type"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "invalid_value"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "invalid_type"),
    ({**BODY, "n": 2}, "invalid_value"),
    ({**BODY, "n": "2"}, "invalid_type"),
    ({**BODY, "max_tokens": 0}, "invalid_value"),
    ({**BODY, "max_tokens": "many"}, "invalid_type"),
    ({**BODY, "tools": {"a": 1}}, "invalid_type"),
    ({**BODY, "tools": [{"type": "function", "function": {"name": 3}}]}, "invalid_type"),
    ({**BODY, "stop": 5}, "invalid_type"),
    ({**BODY, "stream": "yes"}, "invalid_type"),
    ({**BODY, "temperature": "hot"}, "invalid_type"),
    ({**BODY, "seed": "7"}, "invalid_type"),
]


async def test_bad_requests_are_told_what_is_wrong(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        session = await policy.open()
        for body, code in BAD:
            status, got, message = await refused(session, body)
            assert (status, got) == (400, code), body
            assert message
        assert (await call(session))[0] == 200


async def test_unknown_fields_and_odd_history_are_served(tmp_path: Path) -> None:
    odd: Any = {
        "messages": [
            {"role": "developer", "content": None, "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "q", "function": {"name": "f", "arguments": "not json"}}]},
            {"role": "tool", "tool_call_id": "q", "content": [{"type": "text", "text": "\ud83e\udd8a"}]},
            {"role": "system", "content": "late"},
        ],
        "tools": [TOOL, {"type": "web_search"}],
        "stop": [""],
        "metadata": {"a": [1]},
        "store": False,
        "user": "u",
    }
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        assert (await call(await policy.open(), odd))[0] == 200


async def test_bodies_are_bounded(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc", config=GatewayConfig(body_mb=1)) as policy:
        session = await policy.open()
        status, code, message = await refused(session, {"messages": [{"role": "user", "content": "x" * (1 << 20)}]})
        assert (status, code) == (413, "request_too_large")
        assert "gateway.body_mb" in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "function", "name"]), inner)
    ),
    max_leaves=8,
)
FIELDS = ["messages", "tools", "tool_choice", "stream", "max_tokens", "n", "stop", "temperature", "response_format", "stream_options"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON), min_size=10, max_size=40))
async def test_no_json_makes_the_gateway_fail(folder: Path, bodies: list[Any]) -> None:
    async with scripted_gateway(folder, lambda prompt: "abc") as policy:
        await hammer(policy, bodies)


async def hammer(policy: ScriptedPolicy, bodies: list[Any]) -> None:
    session = await policy.open()
    async with aiohttp.ClientSession() as client:
        for body in bodies:
            for sent in (body, {**BODY, **{key: value for key, value in body.items() if key != "messages"}}):
                async with client.post(f"{session.base_url}/chat/completions", data=json.dumps(sent)) as answer:
                    assert answer.status in (200, 400), sent
                    await answer.read()
