"""One large request enlarges the shared memory of its lane only temporarily, in either direction."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.daemon_pool import DaemonPool
from support.models.calling_models import UNBATCHED
from support.real_daemon import RunningDaemon, eventually

from pytriton._protocol.lanes.arena import KEPT, KEPT_S
from pytriton.model_config import Tensor

#: More than an arena keeps.
_LARGE = KEPT + (8 << 20)
_HEAD_SIZE = "Inference-Header-Content-Length"
_STRINGS = [Tensor(name="x", dtype=object, shape=(-1,))]
_ANSWERS = [Tensor(name="y", dtype=object, shape=(-1,))]


def _family(pid: int | None) -> list[int]:
    """Return a process and its children, looked up only once, since that reads all of /proc."""
    assert pid is not None
    return [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]


def _largest(pids: list[int]) -> int:
    """Return the resident bytes of the largest arena of these processes."""
    sizes = [0]
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if "memfd:pytriton" in os.readlink(link):
                    sizes.append(link.stat().st_blocks * 512)
    return max(sizes)


def _strings(requests: Any) -> Any:
    """Return the length of the input for "in", and a string of that length for "out"; such memory is never lent."""
    answers = []
    for request in requests:
        what, text = request["x"]
        answer = text if what == b"both" else str(len(text)).encode()
        answers.append({"y": np.array([answer], object)})
    return answers


@pytest.fixture(scope="module", params=["native", "python"])
def strings(
    daemon_pool: DaemonPool, request: pytest.FixtureRequest
) -> Iterator[tuple[RunningDaemon, HTTPConnection]]:
    # Of Triton's own stubs, shared memory stays until the daemon's end.
    starting = RunningDaemon.start if request.param == "python" else daemon_pool.lend
    with starting(proxy=request.param) as daemon:
        daemon.client.register(
            _strings,
            "strings",
            _STRINGS,
            _ANSWERS,
            UNBATCHED,
            max_inflight_batches=1,
            progress=False,
        )
        with closing(HTTPConnection(daemon.http, timeout=60)) as client:
            yield daemon, client


def _ask(client: HTTPConnection, what: bytes, text: bytes) -> bytes:
    """Send the bytes directly: tritonclient would copy large data a dozen times."""
    data = b"".join(struct.pack("<I", len(one)) + one for one in (what, text))
    size = {"binary_data_size": len(data)}
    x = {"name": "x", "shape": [2], "datatype": "BYTES", "parameters": size}
    y = {"name": "y", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [x], "outputs": [y]}).encode()
    headers = {_HEAD_SIZE: str(len(head))}
    client.request("POST", "/v2/models/strings/infer", head + data, headers)
    response = client.getresponse()
    answer = response.read()
    assert response.status == 200, answer[:500]
    start = int(response.headers[_HEAD_SIZE])
    (size_of_string,) = struct.unpack_from("<I", answer, start)
    string = answer[start + 4 :]
    assert len(string) == size_of_string
    return string


@pytest.mark.parametrize("what", [b"in", b"both"])
def test_memory_of_a_large_request_is_released(
    strings: tuple[RunningDaemon, HTTPConnection], what: bytes
) -> None:
    daemon, client = strings
    _ask(client, what, b"small")  # then the proxy knows what it may read
    text = b"x" * _LARGE
    answer = _ask(client, what, text)
    assert answer == (text if what == b"both" else str(_LARGE).encode())
    server = _family(daemon.client.status().server.pid)
    (worker,) = (_family(one.pid) for one in daemon.client.model("strings").instances)

    answered = time.monotonic()

    def given_back() -> bool:
        if time.monotonic() - answered < KEPT_S:
            return False  # it is kept for so long; a look costs as much as a request
        if daemon.config.proxy == "python":
            # Its worker hears with the next batch that the last one was read.
            _ask(client, b"in", b"small")
        return max(_largest(server), _largest(worker)) <= KEPT

    assert max(_largest(server), _largest(worker)) > KEPT or daemon.config.proxy == "python"
    eventually(given_back, lambda: f"{_largest(server)} and {_largest(worker)} bytes given back")
    assert _ask(client, what, text) == answer
