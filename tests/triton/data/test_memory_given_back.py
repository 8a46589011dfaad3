"""One large request makes the shared memory of its lane large: not for ever, whichever way it goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.kept_daemons import KeptDaemons
from support.models.calling import UNBATCHED
from support.models.inference import Inference
from support.running import RunningDaemon, eventually

from pytriton.ipc.lanes.arena import KEPT
from pytriton.model_config import Tensor

#: More than an arena keeps.
_LARGE = KEPT + (8 << 20)
_STRINGS = [Tensor(name="x", dtype=object, shape=(-1,))]
_ANSWERS = [Tensor(name="y", dtype=object, shape=(-1,))]


def _family(pid: int | None) -> list[int]:
    """Return a process and its children. Who looks for them reads of all processes: once is enough."""
    assert pid is not None
    return [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]


def _largest(pids: list[int]) -> int:
    """Return how many bytes the largest arena has pages for that one of these processes has."""
    sizes = [0]
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if "memfd:pytriton" in os.readlink(link):
                    sizes.append(link.stat().st_blocks * 512)
    return max(sizes)


def _strings(requests: Any) -> Any:
    """Answer "in" with how long it was, and "out" with strings of that many bytes: they are never lent."""
    answers = []
    for request in requests:
        what, text = request["x"]
        answer = text if what == b"both" else str(len(text)).encode()
        answers.append({"y": np.array([answer], object)})
    return answers


@pytest.fixture(scope="module", params=["native", "python"])
def strings(
    kept_daemons: KeptDaemons, request: pytest.FixtureRequest
) -> Iterator[tuple[RunningDaemon, Inference]]:
    # Of Triton's own stubs, shared memory stays until the daemon's end.
    starting = RunningDaemon.start if request.param == "python" else kept_daemons.lend
    with starting(proxy=request.param) as daemon:
        daemon.client.register(
            _strings, "strings", _STRINGS, _ANSWERS, UNBATCHED, lanes=1, progress=False
        )
        with closing(Inference("grpc", daemon.grpc)) as client:
            yield daemon, client


def _ask(client: Inference, what: bytes, text: bytes) -> bytes:
    (answer,) = client.infer("strings", {"x": np.array([what, text], object)})["y"]
    assert isinstance(answer, bytes)
    return answer


@pytest.mark.parametrize("what", [b"in", b"both"])
def test_what_one_large_request_took_is_given_back(
    strings: tuple[RunningDaemon, Inference], what: bytes
) -> None:
    daemon, client = strings
    _ask(client, what, b"small")  # then the proxy knows what it may read
    text = b"x" * _LARGE
    answer = _ask(client, what, text)
    assert answer == (text if what == b"both" else str(_LARGE).encode())
    server = _family(daemon.client.status().server.pid)
    (worker,) = (_family(one.pid) for one in daemon.client.model("strings").instances)

    def given_back() -> bool:
        if daemon.config.proxy == "python":
            # Its worker hears with the next batch that the last one was read.
            _ask(client, b"in", b"small")
        return max(_largest(server), _largest(worker)) <= KEPT

    assert max(_largest(server), _largest(worker)) > KEPT or daemon.config.proxy == "python"
    eventually(given_back, lambda: f"{_largest(server)} and {_largest(worker)} bytes given back")
    assert _ask(client, what, text) == answer
