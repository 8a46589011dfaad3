"""The frontend's timer wheel (timers.c), with simulated time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.frontend.c_programs import built


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    main = Path(__file__).with_name("timers.c")
    return built(main, ["net/timers.c"], tmp_path_factory.mktemp("timers"))


@pytest.mark.parametrize("seed", range(5))
def test_each_timer_fires_once_and_on_time(program: Path, seed: int) -> None:
    done = subprocess.run([program, str(seed)], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == [
        "called many, early 0, late 0, unset 0, left 0",
        "all at once: 32 at most in each of several calls",
    ]
