"""What nobody can measure is refused before anything is installed or started."""

from __future__ import annotations

import pytest
from benchmarks import counter_cost
from benchmarks.__main__ import parse


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rounds", "0"], "--rounds: must be more than 0, not 0"),
        (["--seconds", "-1"], "--seconds: must be more than 0, not -1"),
        (["--seconds", "nan"], "--seconds: must be more than 0, not nan"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_cost_of_counting_is_reported_for_batches_and_streams() -> None:
    batches, responses = counter_cost.lines(rounds=2, calls=3)
    assert batches.startswith("a batch: ")
    assert responses.startswith("a response of a stream: ")
