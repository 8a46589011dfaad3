"""Workers: every kind of callable is served, a crash has no side effects, errors are reported precisely."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.misbehaving_model import Serve, refused
from support.models.inference import Array, Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol.messages import Progress
from pytriton.decorators import batch
from pytriton.exceptions import (
    ModelExistsError,
    ModelNotFoundError,
    PicklingError,
    RegistrationError,
)

# ── kinds of callables ───────────────────────────────────────────────────────────────────────────


@batch
def _function(x: Array) -> dict[str, Array]:
    return {"y": x + 1}


def _closure(step: float) -> Any:
    @batch
    def add(x: Array) -> dict[str, Array]:
        return {"y": x + step}

    return add


class _Adder:
    """Counts how often it was constructed in its process."""

    made = 0

    def __init__(self, step: float = 1) -> None:
        self.step = step
        type(self).made += 1

    @batch
    def __call__(self, x: Array) -> dict[str, Array]:
        return {"y": x + self.step}

    @batch
    def method(self, x: Array) -> list[Array]:
        return [x + self.step]


async def _coroutine(requests: Any) -> Any:
    return [{"y": request["x"] + 1} for request in requests]


def _generator(requests: Any) -> Any:
    yield [{"y": request["x"] + 1} for request in requests]


def _plus(step: float, requests: Any) -> Any:
    return [{"y": request["x"] + step} for request in requests]


@pytest.mark.parametrize(
    "infer",
    [
        pytest.param(_function, id="function"),
        pytest.param(lambda rs: [{"y": r["x"] + 1} for r in rs], id="lambda"),
        pytest.param(_closure(1), id="closure"),
        pytest.param(_Adder(), id="object"),
        pytest.param(_Adder().method, id="method"),
        pytest.param(_Adder, id="class"),
        pytest.param(_coroutine, id="coroutine"),
        pytest.param(_generator, id="generator"),
        pytest.param(functools.partial(_plus, 1), id="partial"),
    ],
)
def test_any_callable_is_served(inference: Inference, serve: Serve, infer: Any) -> None:
    """It is from a module that only this process can import, so it is pickled by value."""
    serve(infer)
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES + 1).tolist()


def test_a_factory_is_called_in_the_worker(inference: Inference, serve: Serve) -> None:
    """Its result need not be picklable."""

    def factory() -> Any:
        lock = threading.Lock()

        @batch
        def infer(x: Array) -> dict[str, Array]:
            with lock:
                return {"y": x + os.getpid()}

        return infer

    model = serve(factory, factory=True)
    answer = inference.infer("model", {"x": np.zeros((1, 1), np.float32)})["y"]
    assert answer.item() == model.instances[0].pid


# ── registration is all or nothing ───────────────────────────────────────────────────────────────


def _raise_while_loading() -> Any:
    raise RuntimeError("the weights are not there")


def _die_while_loading() -> Any:
    print("about to go")
    os.kill(os.getpid(), signal.SIGKILL)


def _import_what_is_not_there() -> Any:
    return importlib.import_module("surely_not_installed")


@pytest.mark.parametrize(
    ("factory", "said", "in_traceback"),
    [
        (_raise_while_loading, "RuntimeError: the weights are not there", "_raise_while_loading"),
        (_die_while_loading, r"was killed by signal 9 \(SIGKILL\) before", "about to go"),
        (
            _import_what_is_not_there,
            r"No module named 'surely_not_installed' \(the worker runs /.*python=",
            "import_module",
        ),
        (lambda: 3, "returned an int, which is not callable", "LoadError"),
        (lambda: sys.exit(5), "SystemExit: 5", "sys.exit"),
    ],
)
def test_a_callable_that_cannot_be_loaded_is_an_error(
    daemon: RunningDaemon, factory: Any, said: str, in_traceback: str
) -> None:
    """One exception with the worker's traceback, and nothing is left."""
    before = {child.pid for child in daemon.children()}
    with pytest.raises(RegistrationError, match=said) as caught:
        daemon.client.register(factory, "broken", X, Y, factory=True, instances=2, progress=False)
    assert in_traceback in (caught.value.remote_traceback or "")
    assert caught.value.model_name == "broken"
    assert daemon.client.models() == []

    def left() -> set[int]:
        """Return the processes that have come since. A stub that was there before may have exited."""
        now = {child.pid for child in daemon.children()}
        return now - {one.pid for one in daemon.fork_servers()} - before

    eventually(lambda: not left(), lambda: f"nothing stays: {left()}")


def test_a_configuration_that_triton_refuses_is_an_error(daemon: RunningDaemon) -> None:
    """Only tritonserver can check this field: the caller gets its reason, and the workers are gone."""
    with pytest.raises(RegistrationError, match="tritonserver did not load model refused"):
        daemon.client.register(_function, "refused", X, Y, refused(), progress=False)
    assert daemon.client.models() == []


def test_a_second_registration_of_a_name_is_refused(daemon: RunningDaemon, serve: Serve) -> None:
    """By default; the first model remains."""
    first = serve(_function)
    with pytest.raises(ModelExistsError, match="replace=True"):
        daemon.client.register(_closure(5), "model", X, Y, progress=False)
    assert first.instances[0].state == "ready"


@pytest.mark.parametrize("name", ["../up", "a b", "", "x" * 300, "ä"])
def test_invalid_names_are_refused(daemon: RunningDaemon, name: str) -> None:
    """A name becomes a folder and part of URLs."""
    with pytest.raises(Exception, match=r"[Mm]odel name"):
        daemon.client.register(_function, name, X, Y, progress=False)


def test_an_unpicklable_object_is_named(daemon: RunningDaemon) -> None:
    """The error names the variable and the solutions."""
    lock = threading.Lock()

    def infer(requests: Any) -> Any:
        with lock:
            return requests

    with pytest.raises(
        PicklingError, match=r"closure variable `lock`.* of function .*infer.*factory"
    ):
        daemon.client.register(infer, "locked", X, Y, progress=False)


def test_progress_is_reported_as_events(daemon: RunningDaemon) -> None:
    """With an event for each loaded worker."""
    events: list[Progress] = []
    model = daemon.client.register(_function, "told", X, Y, instances=2, progress=events.append)
    model.unregister()
    loading = [event.done for event in events if event.stage == "loading"]
    assert loading == [0, 1, 2]
    assert events[-1].stage == "serving"


def test_unknown_models_are_reported(daemon: RunningDaemon) -> None:
    """Each call that names a model lists those that exist."""
    for call in (daemon.client.unregister, daemon.client.model, daemon.client.logs):
        with pytest.raises(ModelNotFoundError, match="no model 'nobody' is registered; registered"):
            call("nobody")


# ── a crash stays where it happened ──────────────────────────────────────────────────────────────


def _crash(requests: Any) -> Any:
    """Crash the worker in the way that the first element selects."""
    kind = int(requests[0]["x"][0, 0])
    if kind == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == 3:
        sys.exit(3)
    return [{"y": request["x"]} for request in requests]


CRASHES = {9: r"was killed by signal 9 \(SIGKILL\)", 3: "exited with code 3"}


@pytest.mark.parametrize("kind", CRASHES)
def test_a_crash_fails_only_its_batch(
    daemon: RunningDaemon, inference: Inference, serve: Serve, kind: int
) -> None:
    """The client gets the worker's exit reason; another worker replaces it; other models and the server survive."""
    serve(_function, "neighbour")
    model = serve(_crash, on_crash="fail")
    server = daemon.client.status().server.pid
    neighbour = daemon.client.model("neighbour").instances[0].pid
    first = model.instances[0].pid
    with pytest.raises(InferenceServerException, match=CRASHES[kind]):
        inference.infer("model", {"x": ONES * kind})
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    instance = model.instances[0]
    assert (instance.state, instance.restarts) == ("ready", 1)
    assert instance.pid != first
    assert daemon.client.status().server.pid == server
    assert daemon.client.model("neighbour").instances[0].pid == neighbour


def test_a_forked_child_does_not_hide_a_crash(
    inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """The callable forks a process that survives, and then crashes: the client still gets the error."""

    def infer(requests: Any) -> Any:
        if requests[0]["x"][0, 0] == 9:
            ready, leaves = os.pipe()
            child = os.fork()
            if child == 0:
                os.setsid()  # not in the worker's group any more, which is ended with the worker
                os.write(leaves, b"1")
                os.closerange(1, 3)
                signal.alarm(100)
                signal.pause()
            os.read(ready, 1)
            (tmp_path / str(child)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"y": request["x"]} for request in requests]

    serve(infer)
    try:
        with pytest.raises(InferenceServerException, match="SIGKILL"):
            inference.infer("model", {"x": ONES * 9}, client_timeout=60)
        children = [int(path.name) for path in tmp_path.iterdir()]
        assert len(children) == 2  # of the first worker, and of the one that tried again
        assert all(psutil.pid_exists(child) for child in children)
    finally:
        for path in tmp_path.iterdir():
            os.kill(int(path.name), signal.SIGKILL)


def test_a_callable_may_send_signals_to_its_children(inference: Inference, serve: Serve) -> None:
    """Neither its own signals nor a child's SIGTERM end the worker."""

    def infer(requests: Any) -> Any:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.raise_signal(signal.SIGALRM)
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join()
        return [
            {"y": np.full_like(request["x"], [os.getpid(), child.exitcode])} for request in requests
        ]

    model = serve(infer)
    answers = [inference.infer("model", {"x": ONES})["y"].tolist() for _ in range(3)]
    assert answers == [[[model.instances[0].pid, -signal.SIGTERM]]] * 3


def test_child_processes_end_with_their_worker(daemon: RunningDaemon) -> None:
    """A callable's child processes are in the worker's process group."""

    def factory() -> Any:
        import subprocess

        child = subprocess.Popen(["sleep", "1000"])

        def infer(requests: Any) -> Any:
            return [{"y": np.full_like(r["x"], child.pid, np.float32)} for r in requests]

        return infer

    model = daemon.client.register(factory, "parent", X, Y, factory=True, progress=False)
    worker = psutil.Process(model.instances[0].pid)
    children = worker.children()
    assert [child.name() for child in children] == ["sleep"]
    model.unregister()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
