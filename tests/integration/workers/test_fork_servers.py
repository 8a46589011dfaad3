"""Forked workers and workers with a fresh interpreter behave alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.models.inference import Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually

#: Threads, and forks of what has had them, are the subject.
pytestmark = pytest.mark.usefixtures("usual_threads")


@pytest.fixture(scope="module", params=[4, 0], ids=["forks", "starts"])
def daemon(request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(max_fork_servers=request.param) as running:
        yield running


def has_forks(daemon: RunningDaemon) -> bool:
    return bool(daemon.config.max_fork_servers)


def load() -> Any:
    """A model that multiplies matrices, and counts the processes."""
    import numpy as np

    weights = np.ones((200, 200), np.float32)

    def infer(requests: Any) -> Any:
        total = (weights @ weights).sum() / 200**3
        return [{"y": one["x"] * total + os.getpid()} for one in requests]

    return infer


def test_all_instances_serve_and_are_children_of_the_daemon(
    daemon: RunningDaemon, inference: Inference
) -> None:
    model = daemon.client.register(load, "four", X, Y, factory=True, instances=4, progress=False)
    pids = {one.pid for one in model.instances}
    eventually(lambda: {one.pid for one in daemon.workers()} == pids, "those before have exited")
    eventually(lambda: len(daemon.fork_servers()) == has_forks(daemon), "theirs has, too")
    assert {psutil.Process(pid).ppid() for pid in pids} == {daemon.process.pid}
    assert all(os.getpgid(pid) == os.getsid(pid) == pid for pid in pids if pid)
    (answer,) = inference.infer("four", {"x": ONES})["y"].ravel()[:1].tolist()
    assert round(answer - 1) in pids
    model.unregister()
    eventually(lambda: not daemon.workers(), "they have exited")


def count_threads() -> Any:
    """A model that multiplies matrices, and returns the number of its threads."""
    import numpy as np

    weights = np.ones((500, 500), np.float32)

    def infer(requests: Any) -> Any:
        assert (weights @ weights)[0, 0] == 500
        threads = float(len(os.listdir("/proc/self/task")))
        return [{"y": one["x"] * 0 + threads} for one in requests]

    return infer


def test_instances_share_the_cores(daemon: RunningDaemon, inference: Inference) -> None:
    """A fork's numpy has chosen its number of threads before the fork."""

    def threads(**options: Any) -> float:
        model = daemon.client.register(
            count_threads, "counting", X, Y, factory=True, progress=False, **options
        )
        answer = inference.infer("counting", {"x": ONES})["y"].ravel()[0]
        explained = daemon.client.explain("counting")
        reported = any(found.about == "threads" for found in explained.findings)
        assert reported == ("env" not in options)
        model.unregister()
        return float(answer)

    cores = len(os.sched_getaffinity(0))
    shared = threads(instances=cores)  # one for each
    assert threads(instances=cores, env={"OMP_NUM_THREADS": str(cores + 1)}) >= shared + cores - 1


def test_a_killed_worker_is_replaced_and_its_exit_reported(
    daemon: RunningDaemon, inference: Inference
) -> None:
    model = daemon.client.register(load, "one", X, Y, factory=True, progress=False)
    (before,) = model.instances
    assert before.pid is not None
    psutil.Process(before.pid).kill()
    inference.infer("one", {"x": ONES})
    (now,) = eventually(
        lambda: [one for one in model.info().instances if one.pid not in (None, before.pid)],
        "another worker",
    )
    assert "was killed by signal 9 (SIGKILL)" in now.last_exit
    assert not psutil.pid_exists(before.pid)
    model.unregister()


def test_prints_go_to_the_models_log_and_only_there(daemon: RunningDaemon) -> None:
    def talkative() -> Any:
        print("said while it loads")
        return lambda requests: [{"y": one["x"]} for one in requests]

    models = [
        daemon.client.register(talkative, name, X, Y, factory=True, progress=False)
        for name in ("first", "second")
    ]
    for model in models:
        logged = partial(logged_prints, daemon, model.name)
        assert eventually(logged, "the print is in the model's log") == 1
        model.unregister()


def logged_prints(daemon: RunningDaemon, name: str) -> int:
    return "\n".join(daemon.client.logs(name)).count("said while it loads")


def test_a_killed_fork_server_is_replaced(daemon: RunningDaemon, inference: Inference) -> None:
    model = daemon.client.register(load, "kept", X, Y, factory=True, progress=False)
    (before,) = model.instances
    for one in daemon.fork_servers():
        one.kill()
    daemon.client.scale("kept", 2)
    pids = {one.pid for one in model.info().instances}
    assert len(pids) == 2
    assert before.pid in pids
    inference.infer("kept", {"x": ONES})
    eventually(lambda: len(daemon.fork_servers()) == has_forks(daemon), "there is one")
    model.unregister()


def test_a_deleted_working_directory_is_reported(daemon: RunningDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    model = daemon.client.register(
        load, "here", X, Y, factory=True, cwd=str(folder), progress=False
    )
    folder.rmdir()
    with pytest.raises(Exception, match=f"its working directory {folder} cannot be used"):
        daemon.client.scale("here", 2)
    assert len(model.info().instances) == 1
    model.unregister()
    eventually(lambda: not daemon.workers(), "it has exited")
