"""`eval` and `try` against somebody else's endpoint: whole commands, no local model, no key in any file."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 120.0
KEY = "sk-not-to-be-written"
ENV = '''
from agentrl import Agent, Env, Episode, Limits, Task, tool

class Spell(Env):
    """Say the word backwards; the tool tells how."""
    agent = Agent(limits=Limits(turns=3))

    def tasks(self, split):
        for word in ("abc", "stone", "queue", "sky"):
            yield Task(prompt=word, answer=word[::-1])

    @tool
    async def turn(self, word: str) -> str:
        """Turn a word around."""
        return word[::-1]

    async def reward(self, task: Task, ep: Episode) -> float:
        return float(ep.text == task.answer)
'''


class Endpoint(BaseHTTPRequestHandler):
    """Serves one model, which calls the tool and repeats what it says; words with a q are beyond it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "their-model", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "their-model"
        last = body["messages"][-1]
        if "q" in last["content"]:
            message: dict[str, Any] = {"role": "assistant", "content": "no idea"}
        elif last["role"] == "tool":
            message = {"role": "assistant", "content": last["content"]}
        else:
            call = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"word": last["content"]})}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
        self._answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})

    def _answer(self, value: dict[str, Any]) -> None:
        allowed = self.headers.get("Authorization") == f"Bearer {KEY}"
        data = json.dumps(value if allowed else {"error": {"message": "wrong key"}}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def agentrl(cwd: Path, *words: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    (cwd / "spell.py").write_text(ENV)
    return subprocess.run(
        [sys.executable, "-m", "agentrl.cli.main", *words, "--env", "./spell.py:Spell"],
        cwd=cwd,
        env={**os.environ, "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_an_endpoint_is_evaluated_like_any_model(url: str, tmp_path: Path) -> None:
    done = agentrl(tmp_path, "eval", url, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["reward"], report["episodes"], report["pass_at"]) == (0.75, 4, {"1": 0.75})


def test_one_episode_of_an_endpoint_is_shown_as_messages(url: str, tmp_path: Path) -> None:
    done = agentrl(tmp_path, "try", "--model", url, "--task", "1", "--served-model", "their-model")
    assert done.returncode == 0, done.stderr
    assert "main (openai/their-model, not trained)" in done.stdout
    assert 'turn({"word": "stone"})' in done.stdout
    assert "assistant: enots" in done.stdout
    assert "reward 1" in done.stdout


def test_an_endpoint_that_refuses_says_so(url: str, tmp_path: Path) -> None:
    unknown = agentrl(tmp_path, "eval", url, key="another")
    assert (unknown.returncode, "--served-model" in unknown.stderr, "401" in unknown.stderr) == (2, True, True)
    refused = agentrl(tmp_path, "eval", url, "--served-model", "their-model", key="another")
    assert refused.returncode == 1
    assert "none of 4 episodes earned a reward" in refused.stderr
    assert "wrong key" in refused.stderr
