"""Large outputs, which tritonserver reads from the worker's own memory: right under load, and when workers die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import PROTOCOLS, Inference
from support.models.tensors import Y
from support.real_daemon import RunningDaemon, eventually

from pytriton.daemon import Model
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

_ROW = 500_000  #: float32: 2 MB
X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_CLIENTS = 4


def _register(daemon: RunningDaemon, infer: Callable[..., Any], **options: Any) -> Model:
    config = options.pop("config", ModelConfig(batching=False))
    return daemon.client.register(infer, "large", X, Y, config, progress=False, **options)


def _ask(client: Inference, value: float, *, rows: int = 0) -> None:
    """Send a value; check that the whole output has it."""
    x = np.full((rows, 1) if rows else (1,), value, np.float32)
    answer = client.infer("large", {"x": x})["y"]
    assert answer.shape == ((rows, _ROW) if rows else (_ROW,))
    assert (answer == value).all(), f"{value} was answered with {np.unique(answer)}"


def _filled(requests: Any) -> Any:
    """Respond from the same memory each time, as models with an output buffer of their own do."""
    answers = []
    for request in requests:
        _kept[0][:] = request["x"][0]
        answers.append({"y": _kept[0]})
    return answers


_kept = [np.empty(_ROW, np.float32)]


@batch
def _computed(x: Any) -> Any:
    return {"y": np.repeat(x, _ROW, axis=1)}


def _load(daemon: RunningDaemon, go_on: Callable[[], bool], rows: int = 0) -> list[BaseException]:
    """Send requests over both protocols from several threads while `go_on` returns True; return the errors."""
    wrong: list[BaseException] = []

    def client(number: int) -> None:
        protocol = PROTOCOLS[number % 2]
        with closing(Inference(protocol, getattr(daemon, protocol))) as inference:
            asked = 0
            while go_on() or asked < 5:
                asked += 1
                try:
                    _ask(inference, 10 * number + asked % 7, rows=rows)
                except BaseException as error:
                    wrong.append(error)

    threads = [threading.Thread(target=client, args=[number]) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_reused_output_memory_is_read_before_the_next_call(
    daemon: RunningDaemon, isolation: str, lanes: int
) -> None:
    _register(daemon, _filled, isolation=isolation, max_inflight_batches=lanes, replace=True)
    assert not _load(daemon, lambda: False)


def test_a_batched_output_is_split_by_request(daemon: RunningDaemon) -> None:
    _register(daemon, _computed, config=ModelConfig(max_batch_size=8), replace=True)
    assert not _load(daemon, lambda: False, rows=2)


def test_nothing_is_copied_into_shared_memory(daemon: RunningDaemon) -> None:
    """The lane's arena stays as small as the first response, from which the proxy learned what it may read."""

    def infer(requests: Any) -> Any:
        return [{"y": np.full(int(request["x"][0]), 1.0, np.float32)} for request in requests]

    model = _register(daemon, infer, max_inflight_batches=1, replace=True)
    with closing(Inference("http", daemon.http)) as client:
        for size in (1, _ROW, 3 * _ROW):
            x = np.array([size], np.float32)
            assert client.infer("large", {"x": x})["y"].sum() == size
    assert _arenas(model.instances[0].pid) < 1 << 20


def _arenas(pid: int | None) -> int:
    """Return the total size in bytes of the arenas that a worker writes."""
    assert pid is not None
    size = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            if "pytriton-lane" in os.readlink(link):
                flags = int((link.parents[1] / "fdinfo" / link.name).read_text().split()[3], 8)
                size += link.stat().st_size if flags & os.O_ACCMODE == os.O_RDWR else 0
    return size


def test_a_worker_that_is_killed_fails_no_request(daemon: RunningDaemon) -> None:
    """Including one whose response is being read."""
    model = _register(daemon, _computed, config=ModelConfig(max_batch_size=4), replace=True)
    killed: set[int] = set()
    ended = threading.Event()

    def kill() -> None:
        try:
            while len(killed) < 12:
                (one,) = eventually(
                    lambda: [
                        one
                        for one in model.instances
                        if one.state == "ready"
                        and one.pid not in {None, *killed}
                        and one.batches > 2
                    ],
                    "the next worker serves",
                )
                killed.add(one.pid)
                os.kill(one.pid, signal.SIGKILL)
        finally:
            ended.set()

    killer = threading.Thread(target=kill)
    killer.start()
    wrong = _load(daemon, lambda: not ended.is_set(), rows=1)
    killer.join()
    assert len(killed) == 12
    assert not wrong, wrong
