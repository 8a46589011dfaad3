"""Deadlocked calls: the largest set of workers that wait only for each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytriton.dispatcher.workers.call_deadlocks import PendingCalls

ME = os.getpid()
WORKERS = {"a": ["a1"], "b": ["b1"], "two": ["t1", "t2"], "native": []}


def stuck(waits: dict[str, list[str]], worker: str) -> list[str]:
    waiting = PendingCalls()
    for name, models in waits.items():
        waiting.record(name, ME, models)
    return waiting.stuck(worker, WORKERS.__getitem__)


@pytest.mark.parametrize(
    ("waits", "worker", "models"),
    [
        ({"a1": ["b"]}, "a1", []),
        ({"a1": ["a"]}, "a1", ["a"]),
        ({"a1": ["b"], "b1": ["a"]}, "a1", ["b"]),
        ({"a1": ["b"], "b1": ["a"]}, "b1", ["a"]),
        ({"a1": ["b", "native"], "b1": ["a"]}, "a1", ["b"]),
        ({"a1": ["native"]}, "a1", []),
        ({"a1": ["two"], "t1": ["a"]}, "a1", []),
        ({"a1": ["two"], "t1": ["a"], "t2": ["a"]}, "a1", ["two"]),
        ({"a1": ["two"], "t1": ["a"], "t2": ["b"]}, "a1", []),
        ({"a1": ["two"], "t1": ["a"], "t2": ["b"], "b1": ["two"]}, "t2", ["b"]),
        ({"a1": ["b"], "b1": ["a"]}, "t1", []),
    ],
)
def test_deadlocked_workers_are_found(
    waits: dict[str, list[str]], worker: str, models: list[str]
) -> None:
    assert stuck(waits, worker) == models


def test_a_worker_that_stops_waiting_resolves_the_deadlock() -> None:
    waiting = PendingCalls()
    waiting.record("a1", ME, ["b"])
    waiting.record("b1", ME, ["a"])
    waiting.record("a1", ME, [])
    assert waiting.stuck("b1", WORKERS.__getitem__) == []


def test_proxies_of_one_process_report_separately() -> None:
    waiting = PendingCalls()
    waiting.record("a1", ME, ["b"], "one")
    waiting.record("a1", ME, [], "another")
    waiting.record("b1", ME, ["a"], "third")
    assert waiting.stuck("a1", WORKERS.__getitem__) == ["b"]
    waiting.record("a1", ME, [], "one")
    assert waiting.stuck("b1", WORKERS.__getitem__) == []


def test_the_reports_of_a_proxy_end_with_its_process() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    waiting = PendingCalls()
    waiting.record("a1", ended.pid, ["b"])
    waiting.record("b1", ME, ["a"])
    assert waiting.stuck("b1", WORKERS.__getitem__) == []
