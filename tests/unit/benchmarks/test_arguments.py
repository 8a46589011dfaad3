"""What nobody can measure is refused before anything is installed or started."""

from __future__ import annotations

import pytest
from benchmarks.__main__ import parse


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rounds", "0"], "--rounds: has to be more than 0, not 0"),
        (["--seconds", "-1"], "--seconds: has to be more than 0, not -1"),
        (["--seconds", "nan"], "--seconds: has to be more than 0, not nan"),
        (["--protocols", "http,smtp"], "no protocol 'smtp'; there are: http, grpc"),
        (["--report", "/no/such/results.json"], "there is no file /no/such/results.json"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_right_ones_are_taken() -> None:
    args = parse(["--rounds", "2", "--seconds", "0.5", "--protocols", "grpc"])
    assert (args.rounds, args.seconds, args.protocols) == (2, 0.5, "grpc")
