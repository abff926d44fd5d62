"""An episode from set-up to grade. Whatever fails is recorded in the episode: a bad episode is data.

Who is to blame decides what the policy learns. A limit is the policy's (`on_truncate`); an exception in a hook or an unreachable model is
not (`on_error`): such an episode is masked, or it would teach the policy about our bugs.
"""

import traceback

import anyio

from agentrl.env.env import Env
from agentrl.env.episode import Root
from agentrl.env.reward import Score, number, score
from agentrl.env.tool import bounded
from agentrl.episode import TRUNCATED, ErrorRecord, Terminal
from agentrl.errors import AgentRLError, EnvError, LimitReached, boundary

TRACEBACK_CHARACTERS = 4000
MESSAGE_CHARACTERS = 2000
NEVER_S = float("inf")


async def live(env: Env, ep: Root) -> None:
    """Set-up, run, reward, teardown. Raises nothing but cancellation."""
    try:
        await _set_up(env, ep)
        await _run(env, ep)
        await _grade(env, ep)
    except Exception as failure:  # also a defect of our own: the worker has other episodes
        fail(ep, failure)
    finally:
        await _tear_down(env, ep)


async def _set_up(env: Env, ep: Root) -> None:
    ep.activity = "setup"
    with boundary(EnvError, "State()"):
        ep.own_state = env.State()
    if type(env).setup is not Env.setup:  # what does nothing is not worth a thread
        await ep.calls("setup", env.setup, ep.task, ep, deadline_s=ep.bounds.setup_s)


async def _run(env: Env, ep: Root) -> None:
    ep.activity = "run"
    with anyio.move_on_after(ep.bounds.run_s) as clock:
        try:
            await ep.calls("run", env.run, ep.task, ep, deadline_s=NEVER_S)
        except LimitReached as limit:  # met by a run that the environment had opened itself
            end(ep, limit.reason)
    end(ep, "time" if clock.cancelled_caught else ep.main.terminal if ep.main and ep.main.terminal else "finished")


async def _grade(env: Env, ep: Root) -> None:
    """`reward()` fills every trained run that `run` left without a reward; runs of minted tasks that were left so are masked."""
    ep.activity = "reward"
    value = await ep.calls("reward", env.reward, ep.task, ep, deadline_s=ep.bounds.reward_s)
    earned = score(value, env.weights)
    if value is None and type(env).reward is Env.reward and not any(run.rewarded for run in ep.runs):
        raise EnvError(f"{env.name} gives no reward: define reward(self, task, ep), or set the reward of agent runs in run()")
    for name, metric in [pair for one in (ep, *ep.runs) for pair in one.metrics.items()]:
        number(metric, f"metric {name!r}")
    for run in ep.runs:
        if not run.rewarded and run.role.trained:
            run.give(Score(total=None) if run.minted else earned)
        if run.terminal in TRUNCATED and env.config.on_truncate != "score":
            run.give(Score(total=0.0 if env.config.on_truncate == "zero" else None, parts=run.parts))


async def _tear_down(env: Env, ep: Root) -> None:
    """Shielded: it happens also when the episode is cancelled."""
    ep.activity = "teardown"
    with anyio.CancelScope(shield=True):
        try:
            if type(env).teardown is not Env.teardown:
                await ep.calls("teardown", env.teardown, ep.task, ep, deadline_s=ep.bounds.setup_s)
            await ep.calls("close clients", ep.close, deadline_s=10)
        except AgentRLError as failure:
            ep.errors.append(describe(failure, "teardown"))


def end(ep: Root, terminal: Terminal | str) -> None:
    """Give the episode, and each run that is still open, its terminal reason; the first one counts."""
    ep.terminal = ep.terminal or terminal  # type: ignore[assignment]
    for run in ep.runs:
        run.finish(terminal)


def fail(ep: Root, failure: Exception) -> None:
    """A failure that is not the policy's: every trained run loses its reward, or gets 0 by on_error = "zero"."""
    ep.errors.append(describe(failure, ep.activity))
    zero = ep.env.config.on_error == "zero"
    ep.terminal = "crash" if zero else "error"
    for run in ep.runs:
        run.terminal = ep.terminal
        run.give(Score(total=0.0 if zero else None))


def describe(failure: BaseException, where: str) -> ErrorRecord:
    """The failure as data; kind and traceback are those of the foreign exception behind it, if there is one."""
    ours = isinstance(failure, AgentRLError)
    cause = (failure.__cause__ if ours else None) or failure
    trace = "" if cause is failure and ours else "".join(traceback.format_exception(cause))[-TRACEBACK_CHARACTERS:]
    return ErrorRecord(where=where, kind=type(cause).__name__, message=bounded(str(failure), MESSAGE_CHARACTERS), traceback=bounded(trace))
