"""The frontend's thread pool: each job has its own thread, up to the maximum."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.frontend.c_programs import built


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = Path(__file__).parent
    rooms = ("thread_pool/thread_pool.c", "base/*.c", "memory/*.c")
    return built(here / "jobs.c", rooms, tmp_path_factory.mktemp("jobs"))


@pytest.mark.parametrize("threads", [2, 16])
def test_concurrent_jobs_do_not_wait_for_each_other(program: Path, threads: int) -> None:
    """Loading a model takes minutes, and a job right behind it must not wait for that."""
    done = subprocess.run([program, str(threads), "50"], check=True, capture_output=True, text=True)
    assert done.stdout == "refused 0\n"
