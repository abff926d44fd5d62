"""Countdown: reach a target with given numbers, with a calculator that says too low or too high."""

from agentrl_countdown.config import CountdownConfig
from agentrl_countdown.env import Countdown

__all__ = ["Countdown", "CountdownConfig"]
