"""The trace file (trace_file.c) is a complete JSON array at any time, also when the disk is full."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.frontend.c_programs import built


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    main = Path(__file__).parent / "trace_file.c"
    rooms = ("tracing/trace_file.c", "base/*.c", "memory/*.c")
    return built(main, rooms, tmp_path_factory.mktemp("tracing"))


@pytest.mark.parametrize(("how", "kept"), [((), [1, 3]), (("at once",), [3])])
def test_records_that_do_not_fit_on_disk_are_dropped(
    program: Path, tmp_path: Path, how: tuple[str, ...], kept: list[int]
) -> None:
    path = tmp_path / "traces.json"
    done = subprocess.run([program, path, *how], check=True, capture_output=True, text=True)
    assert [entry["id"] for entry in json.loads(path.read_text())] == kept
    assert done.stderr.count("cannot write traces to") == 1
