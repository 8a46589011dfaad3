"""The number of compute threads of a worker's libraries: its share of the cores."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytriton._protocol import linux, messages
from pytriton.dispatcher.workers.worker_process import (
    THREAD_VARIABLES,
    thread_share,
    thread_variables,
    wait_policy,
)


def spec_of(env: dict[str, str] | None = None, **fields: Any) -> messages.ModelSpec:
    return messages.ModelSpec(
        "m", 1, {}, messages.WorkerEnvironment("python", env=env or {}), **fields
    )


def autoscale(least: int, most: int) -> messages.Autoscale:
    return messages.Autoscale(least=least, most=most)


@pytest.mark.parametrize(
    ("fields", "quota", "share"),
    [
        ({}, 8.0, 0),  # what a library takes by itself
        ({}, 2.5, 2),  # it would count the machine's cores
        ({"instances": 2}, 8.0, 4),
        ({"instances": 3}, 8.0, 2),
        ({"instances": 20}, 8.0, 1),
        ({"instances": 1, "standby_workers": 1}, 8.0, 0),  # a standby worker does not compute
        ({"instances": 1, "autoscale": autoscale(1, 4)}, 8.0, 2),
        ({"instances": 1, "autoscale": autoscale(0, 1)}, 8.0, 0),
        ({"instances": 2, "limits": messages.Limits(cpus=[0, 1, 2])}, 8.0, 1),
        ({"instances": 2, "isolation": "thread"}, 8.0, 0),
        ({"instances": 2, "env": {"OMP_NUM_THREADS": "7"}}, 8.0, 0),
    ],
)
def test_the_share_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], quota: float, share: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(linux, "usable_cpus", lambda: quota)
    spec = spec_of(**fields)
    assert thread_share(spec) == share
    assert thread_variables(spec) == (dict.fromkeys(THREAD_VARIABLES, str(share)) if share else {})


def test_user_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(linux, "usable_cpus", lambda: 8.0)
    given = thread_variables(spec_of(env={"MKL_NUM_THREADS": "3"}, instances=2))
    assert given == dict.fromkeys(
        [name for name in THREAD_VARIABLES if name != "MKL_NUM_THREADS"], "4"
    )


def test_openmp_threads_sleep_while_they_wait_unless_the_user_decides() -> None:
    assert wait_policy({"OMP_NUM_THREADS": "2"}) == {"OMP_WAIT_POLICY": "passive"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert wait_policy({name: "1"}) == {}
