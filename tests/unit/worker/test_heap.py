"""Freed memory is kept for the next batch: counted in page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

BATCHES = 50
#: Pages of one array of 602 KB, of which a batch frees several.
PAGES = 147
_PROGRAM = f"""
import resource, sys
import numpy as np
from pytriton.worker.heap import keep_freed_memory

def batch():
    x = source.copy()
    y = x * 2
    z = y + 1
    w = z.astype(np.float64)

source = np.ones(150_528, np.float32)
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
for _ in range(20):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({BATCHES}):
    batch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="other C libraries have heaps of their own"
    ),
]


def faults(what: str, **env: str) -> tuple[str, int]:
    """What the function returned, and the page faults of a worker-like process in a few batches."""
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, what],
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = done.stdout.split()
    return kept, int(count)


def test_batches_find_their_memory_again() -> None:
    kept, count = faults("keep")
    assert kept == "True"
    assert count < PAGES
    assert faults("leave")[1] > PAGES * BATCHES  # what it is good for


@pytest.mark.parametrize(
    "env",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_the_environment_has_the_last_word(env: dict[str, str]) -> None:
    kept, count = faults("keep", **env)
    assert kept == "False"
    assert count > PAGES * BATCHES
