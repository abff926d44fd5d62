"""What a failure inside task groups is told as."""

import pytest

from agentrl.env.call import only
from agentrl.errors import EnvError, LedgerError

LEDGER, ENV, BUG = LedgerError("disk"), EnvError("no tasks"), KeyError("a")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (BUG, BUG),
        (ExceptionGroup("g", [ExceptionGroup("h", [BUG])]), BUG),
        (ExceptionGroup("g", [LEDGER, ExceptionGroup("h", [ENV])]), LEDGER),
    ],
)
def test_one_cause_is_told_by_name(raised: BaseException, told: BaseException) -> None:
    assert only(raised) is told


def test_nothing_of_several_defects_is_hidden() -> None:
    raised = ExceptionGroup("g", [LEDGER, BUG])
    assert only(raised) is raised
