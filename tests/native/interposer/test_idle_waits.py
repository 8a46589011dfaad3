"""The waits of idle schedulers of Triton's core: they last longer until a notification."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.compile_cache import compile_program

from pytriton._host.install import proxy_compiler
from pytriton._host.install.proxy_compiler import INTERPOSER

_HERE = Path(__file__).parent
_ROOT = Path(__file__).parents[3]
_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-Wall", "-Werror", "-pthread")
#: Runs the steps in a process with the interposer, and prints the limit of each wait. Steps: the milliseconds of a wait
#: of the core, negative if it is notified.
_PROGRAM = """
import ctypes, json, sys
core, recorder = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
notifies = ctypes.c_int.in_dll(recorder, "recorder_notifies")
stops_clock = ctypes.c_int.in_dll(recorder, "recorder_stops_clock")
limit = ctypes.c_double.in_dll(recorder, "recorder_limit_s")
seen = []
for step in json.loads(sys.argv[3]):
    notifies.value = step < 0
    stops_clock.value = 1
    code = core.core_wait(abs(step))
    stops_clock.value = 0
    assert (code == 0) == (step < 0), code
    seen.append(limit.value)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the interposer, the recorder, and a library named as the core, and as another one."""
    folder = tmp_path_factory.mktemp("interposer")
    proxy_compiler.compile_program(INTERPOSER, _ROOT / "proxy_backend", folder / "libinterposer.so")
    for target, source in [
        ("librecorder.so", "recorder.c"),
        ("libtritonserver-1.so", "core.c"),
        ("libother.so", "core.c"),
    ]:
        compile_program(folder / target, _FLAGS, [_HERE / source], ["-shared"])
    return folder


def waits(libraries: Path, steps: list[int], core: str = "libtritonserver-1.so") -> list[float]:
    """Return how long each of a library's waits may last, in seconds."""
    preloaded = f"{libraries / 'libinterposer.so'}:{libraries / 'librecorder.so'}"
    arguments = [str(libraries / core), str(libraries / "librecorder.so"), json.dumps(steps)]
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, *arguments],
        env={**os.environ, "LD_PRELOAD": preloaded},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Any = json.loads(done.stdout)
    return [float(one) for one in found]


def long_ones(found: list[float]) -> list[bool]:
    return [one > 1 for one in found]


def test_an_idle_thread_waits_longer_until_it_is_notified(libraries: Path) -> None:
    found = waits(libraries, [500] * 13 + [-500] + [500] * 11)
    assert long_ones(found) == [False] * 10 + [True] * 4 + [False] * 10 + [True]
    assert max(found) <= 60


def test_a_notification_in_between_keeps_the_core_s_limit(libraries: Path) -> None:
    assert not any(long_ones(waits(libraries, ([500] * 9 + [-500]) * 3)))


def test_other_limits_of_the_core_are_kept(libraries: Path) -> None:
    steps = [50, 490, 499, 501, 700] * 12
    assert waits(libraries, steps) == pytest.approx([step / 1000 for step in steps])


def test_other_libraries_keep_their_limits(libraries: Path) -> None:
    assert not any(long_ones(waits(libraries, [500] * 20, core="libother.so")))
