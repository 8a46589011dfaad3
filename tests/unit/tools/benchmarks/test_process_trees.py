"""What the benchmark says of a tree of processes: CPU time, page faults, memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import process_trees
from benchmarks.reporting.figures import disturbed
from benchmarks.runner import undisturbed

MB = 1 << 20
READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print(sum(content[::4096]), flush=True)
    sys.stdin.read()
"""


@contextmanager
def reader(path: Path) -> Iterator[int]:
    """Yield the id of a process that has all pages of a file mapped."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_memory_is_what_a_tree_would_have_alone(tmp_path: Path) -> None:
    """Pages that others have mapped, too, count in full; those that two of the tree share, once."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 64 * MB)
    with reader(path) as one, reader(path) as other, reader(path):
        alone, both = process_trees.memory_mb([one]), process_trees.memory_mb([one, other])
    assert alone > 64 * MB / 1e6
    assert both - alone < 40
    assert process_trees.memory_mb([one]) == 0  # it has ended


def test_page_faults_are_those_of_the_tree() -> None:
    before = process_trees.use(os.getpid())
    code = "b = bytearray(64 << 20); print(len(b), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        after = process_trees.use(os.getpid())
        process.communicate(b"\n")
    assert after.processes == before.processes + 1
    assert after.faults - before.faults >= 64 * MB // mmap.PAGESIZE // 512  # at least huge pages
    assert after.cpu_s > before.cpu_s


def test_a_measurement_without_its_cpus_is_disturbed() -> None:
    """A tenth of the cores is the limit; results of older runs do not tell."""
    assert disturbed({"stolen_cpus": 0.5, "cores": 2})
    assert not disturbed({"stolen_cpus": 0.5, "cores": 16})
    assert not disturbed({})
    assert np.isfinite(process_trees.machine_cpu_s() + process_trees.stolen_cpu_s())


FINE = {"cores": 2, "failed": 0, "hidden": 0, "server_failures": 0, "wrong": None}


def made_of(*attempts: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of measurements, of which there are three at most."""
    results = iter([{**FINE, **one} for one in attempts])
    return undisturbed(lambda: next(results), most=3, pause_s=0.0)


def test_a_disturbed_measurement_is_made_again() -> None:
    """Until one is not, or as often as is allowed; then the least disturbed counts."""
    assert made_of({"stolen_cpus": 0.1}, {"stolen_cpus": 0.0})["attempts"] == 1
    assert made_of({"stolen_cpus": 1.8}, {"stolen_cpus": 0.1})["stolen_cpus"] == 0.1
    found = made_of(*({"stolen_cpus": stolen} for stolen in (1.8, 0.5, 1.2, 0.0)))
    assert (found["attempts"], found["stolen_cpus"]) == (3, 0.5)


def test_measuring_again_makes_no_error_good() -> None:
    found = made_of({"stolen_cpus": 1.8, "wrong": "other bytes"}, {"stolen_cpus": 0.0})
    assert found["wrong"] == "other bytes"
