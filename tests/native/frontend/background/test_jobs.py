"""The thread pool of the frontend: each has a thread of its own as long as there may be more."""

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
    """A model's load takes minutes: one that comes right behind another does not wait for its end."""
    done = subprocess.run([program, str(threads), "50"], check=True, capture_output=True, text=True)
    assert done.stdout == "refused 0\n"
