"""The trainer's loop against a controller over real HTTP."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

from agentrl.errors import TrainError
from agentrl.ledger.feed import Batch, CheckpointReport, Minibatch, StepReport, Stop
from agentrl.objective import ObjectiveConfig
from agentrl.objective.preset import objective
from agentrl.train.checkpoint import Checkpoints, latest
from agentrl.train.client import ControllerClient
from agentrl.train.config import TrainConfig
from agentrl.train.loop import train
from agentrl.train.model import load_model
from agentrl.train.publication import Publication
from agentrl.train.trainer import Trainer
from agentrl.weights.codec import read_payload
from agentrl.weights.publish import WeightPublisher
from agentrl.weights.update import WeightUpdate
from tests.unit.train.feed import Blobs, eight_episodes
from tests.unit.train.models import tiny_llama

BODIES = {"/trainer/step": StepReport, "/trainer/ready": WeightUpdate, "/trainer/checkpoint": CheckpointReport}


class Controller(ThreadingHTTPServer):
    """Feeds what it was given, with a "none yet" before each, and keeps what it is told."""

    daemon_threads = True

    def __init__(self, feed: list[Batch | Stop]) -> None:
        super().__init__(("127.0.0.1", 0), Route)
        self.feed: list[Batch | Stop | None] = [reply for item in feed for reply in (None, item)]
        self.told: list[StepReport | WeightUpdate | CheckpointReport] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Route(BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["authorization"] != "Bearer secret":
            self.answer(401, b"this route needs the run's token")
        elif self.path == "/trainer/batch":
            reply = self.server.feed.pop(0) if self.server.feed else None
            self.answer(204, b"") if reply is None else self.answer(200, msgspec.msgpack.encode(reply))
        else:
            self.server.told.append(msgspec.msgpack.decode(body, type=BODIES[self.path]))
            self.answer(200, msgspec.msgpack.encode({}))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


@pytest.fixture
def controller(blobs) -> Iterator[Controller]:
    """Two batches of two minibatches, then stop."""
    batches = []
    for number in (1, 2):
        minibatches = []
        for step in (2 * number - 1, 2 * number):
            episodes, tokens = eight_episodes(blobs, seed=100 * step)
            minibatches.append(Minibatch(step=step, episodes=tuple(episodes), trained_tokens=tokens))
        batches.append(
            Batch(number=number, minibatches=tuple(minibatches), policy_version=0, oldest_version=0, ledger_position=10 * number)
        )
    server = Controller([*batches, Stop(reason="steps")])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Run:
    """What a trainer's main composes."""

    def __init__(self, folder: Path, controller: Controller, blobs: Blobs, **changes: object) -> None:
        tiny_llama().save_pretrained(folder / "model")
        config = replace(TrainConfig(lr=1e-3, steps=4, save_every=2, keep_checkpoints=2), **changes)
        policy = load_model(folder / "model", dtype="float32", device=torch.device("cpu"))
        self.trainer = Trainer(policy, objective(ObjectiveConfig()), config, blobs.open, held_version=6)
        self.client = ControllerClient(controller.url, "secret")
        self.publisher = WeightPublisher(folder / "weights", keep=8)
        self.publication = Publication(self.publisher, self.client.report_ready, next_version=7)
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=config.keep_checkpoints, source=folder / "model")

    def train(self) -> Stop:
        stop = train(self.trainer, self.client, self.publication, self.checkpoints)
        self.publication.close()
        self.client.close()
        return stop


def told(controller: Controller, kind: type) -> list:
    return [message for message in controller.told if isinstance(message, kind)]


def test_every_step_is_reported_published_in_order_and_saved(tmp_path, controller, blobs):
    run = Run(tmp_path, controller, blobs)
    assert run.train() == Stop(reason="steps")
    assert [report.step for report in told(controller, StepReport)] == [1, 2, 3, 4]
    assert [update.version for update in told(controller, WeightUpdate)] == [7, 8, 9, 10]
    assert [report.step for report in told(controller, CheckpointReport)] == [2, 4]
    newest = latest(tmp_path / "checkpoints")
    assert newest is not None
    assert (newest.manifest.step, newest.manifest.policy_version, newest.manifest.ledger_position) == (4, 10, 20)


def test_the_payload_holds_the_weights_of_its_step(tmp_path, controller, blobs):
    run = Run(tmp_path, controller, blobs)
    run.train()
    update = told(controller, WeightUpdate)[-1]
    tensors = read_payload(Path(update.locator), update.tensors)
    held = dict(run.trainer.policy.named_parameters())
    assert {name: data.tobytes() for name, data in tensors.items()} == {name: p.detach().numpy().tobytes() for name, p in held.items()}


def test_publishing_less_often_still_publishes_the_last_step(tmp_path, controller, blobs):
    Run(tmp_path, controller, blobs, publish_every=3, save_every=0).train()
    assert [update.version for update in told(controller, WeightUpdate)] == [7, 8]
    assert [report.step for report in told(controller, CheckpointReport)] == [4]


def test_at_learning_rate_zero_every_publication_is_bit_equal_to_the_start(tmp_path, controller, blobs):
    run = Run(tmp_path, controller, blobs, lr=0.0)
    start = {name: p.detach().numpy().tobytes() for name, p in run.trainer.policy.named_parameters()}
    run.train()
    for update in told(controller, WeightUpdate):
        tensors = read_payload(Path(update.locator), update.tensors)
        assert {name: data.tobytes() for name, data in tensors.items()} == start


def test_waiting_is_told_from_working_and_counts_once_a_batch(tmp_path, controller, blobs):
    Run(tmp_path, controller, blobs).train()
    metrics = [report.metrics for report in told(controller, StepReport)]
    assert [m["wait_s"] > 0 for m in metrics] == [True, False, True, False]
    assert all(m["train_s"] > 0 for m in metrics)


def test_a_publication_that_fails_ends_the_wait_for_a_batch_that_will_never_come(tmp_path, controller, blobs):
    run = Run(tmp_path, controller, blobs, publish_every=2)
    run.publisher.directory.rmdir()
    del controller.feed[2:]
    with pytest.raises(Exception, match="cannot write weights"):
        run.train()


def test_a_wrong_token_or_an_absent_controller_is_an_error_that_says_so(controller):
    with pytest.raises(TrainError, match=r"refused POST /trainer/batch with 401: this route needs the run's token"):
        ControllerClient(controller.url, "wrong").next_batch(lambda: None)
    with pytest.raises(TrainError, match="did not answer POST /trainer/batch"):
        ControllerClient("http://127.0.0.1:9", "secret").next_batch(lambda: None)
