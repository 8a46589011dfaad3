"""Shared memory regions of several frontends: each sees those that clients register with the others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import ask, data_of, head, post

_SYSTEM = "/v2/systemsharedmemory"


@pytest.fixture
def table() -> Iterator[int]:
    number = os.memfd_create("regions")
    yield number
    os.close(number)


@pytest.fixture
def frontends(made: Built, table: int) -> Iterator[tuple[OpenAIProcess, OpenAIProcess]]:
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(
                running(made, {"regions": 3}, descriptors=[table], regions_fd=table)
            )
            for _ in range(2)
        )
        yield one, other


class Memory:
    """Shared memory of a client, with two numbers."""

    def __init__(self, *values: float) -> None:
        self.memory = shared_memory.SharedMemory(create=True, size=8)
        np.ndarray(2, np.float32, self.memory.buf)[:] = values

    @property
    def key(self) -> str:
        return self.memory.name

    def close(self) -> None:
        self.memory.close()
        self.memory.unlink()


def _register(frontend: OpenAIProcess, name: str, memory: Memory) -> int:
    body = json.dumps({"key": memory.key, "offset": 0, "byte_size": 8}).encode()
    return ask(frontend, head(f"POST {_SYSTEM}/region/{name}/register", body=body))[0]


def _unregister(frontend: OpenAIProcess, name: str = "") -> int:
    path = f"{_SYSTEM}/region/{name}/unregister" if name else f"{_SYSTEM}/unregister"
    return ask(frontend, head(f"POST {path}"))[0]


def _names(frontend: OpenAIProcess) -> list[str]:
    status, _, body = ask(frontend, head(f"GET {_SYSTEM}/status"))
    assert status == 200
    return [one["name"] for one in json.loads(body)]


def _infer(frontend: OpenAIProcess, name: str) -> tuple[int, dict[str, str], bytes]:
    parameters = {"shared_memory_region": name, "shared_memory_byte_size": 8}
    one = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}
    return ask(frontend, post("echo", json.dumps({"inputs": [one]}).encode()))


def test_regions_are_visible_in_both_frontends(
    frontends: tuple[OpenAIProcess, OpenAIProcess],
) -> None:
    one, other = frontends
    with closing(Memory(1, 2)) as first, closing(Memory(3, 4)) as second:
        assert _register(one, "r", first) == 200
        assert [data_of(_infer(frontend, "r")) for frontend in frontends] == [[1, 2]] * 2
        assert _names(one) == _names(other) == ["r"]
        assert _register(other, "r", second) == 409  # it is taken
        # None of them goes on with what the other one has unregistered, or registered anew.
        assert _unregister(other, "r") == 200
        assert [_infer(frontend, "r")[0] for frontend in frontends] == [404, 404]
        assert _register(other, "r", second) == 200
        assert [data_of(_infer(frontend, "r")) for frontend in frontends] == [[3, 4]] * 2
        assert _register(one, "s", first) == 200
        assert _unregister(other) == 200
        assert _names(one) == _names(other) == []
        assert [_infer(frontend, "s")[0] for frontend in frontends] == [404, 404]


def test_the_limit_counts_the_regions_of_all_frontends(
    frontends: tuple[OpenAIProcess, OpenAIProcess],
) -> None:
    one, other = frontends
    with closing(Memory(1, 2)) as memory:
        assert [_register(one, "a", memory), _register(other, "b", memory)] == [200, 200]
        assert [_register(one, "c", memory), _register(other, "d", memory)] == [200, 429]
        assert _unregister(other, "a") == 200
        assert _register(one, "d", memory) == 200
        assert _names(other) == ["b", "c", "d"]


def test_a_later_frontend_has_the_same_regions(made: Built, table: int) -> None:
    """As after a crash. The key has to refer to the same memory as before."""
    with closing(Memory(1, 2)) as memory, closing(Memory(5, 6)) as other:
        with running(made, descriptors=[table], regions_fd=table) as frontend:
            assert [_register(frontend, "r", memory), _register(frontend, "o", other)] == [200, 200]
            frontend.kill()
        path = Path("/dev/shm", other.key)
        path.unlink()
        path.write_bytes(bytes(8))
        with running(made, descriptors=[table], regions_fd=table) as frontend:
            assert data_of(_infer(frontend, "r")) == [1, 2]
            status, _, body = _infer(frontend, "o")
            assert status == 400
            assert (
                b"now refers to different memory than when it was registered: register it again"
                in body
            )
            assert [_unregister(frontend, "o"), _register(frontend, "o", other)] == [200, 200]
            assert data_of(_infer(frontend, "o")) == [0, 0]
