"""What user code prints is bounded, and the loss is told."""

import io
import sys

from agentrl.rollout.output import BoundedText, bounded_stdout


def test_a_hundred_megabytes_leave_a_note() -> None:
    below, now = io.StringIO(), [0.0]
    text = BoundedText(below, per_s=10, burst=100, clock=lambda: now[0])
    for _ in range(100):
        print("x" * 1_000_000, file=text)
    assert len(below.getvalue()) <= 100
    now[0] = 60.0  # the bucket is full again
    print("later", file=text)
    assert below.getvalue().endswith("characters of output dropped]\nlater\n")


def test_print_goes_to_stderr_meanwhile() -> None:
    out = sys.stdout
    with bounded_stdout() as text:
        assert sys.stdout is text
    assert sys.stdout is out
