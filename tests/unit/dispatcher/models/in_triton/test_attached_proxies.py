"""The proxies of one registration: proxy processes are watched, proxies inside tritonserver are not."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.in_triton import attached_proxies
from pytriton.dispatcher.models.in_triton.attached_proxies import Proxies


@pytest.fixture
def stub() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is killed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class Gone:
    """Records the proxies reported as gone."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.first = asyncio.Event()

    def __call__(self, proxy: str) -> None:
        self.names.append(proxy)
        self.first.set()


def test_a_proxy_that_was_killed_is_noticed_once(stub: subprocess.Popen[bytes]) -> None:
    async def main() -> None:
        gone = Gone()
        proxies = Proxies(gone)
        for _ in range(2):  # it asks for a lane again and again
            proxies.watch("p", stub.pid)
        stub.kill()
        await asyncio.wait_for(gone.first.wait(), 30)
        assert gone.names == ["p"]
        assert proxies.names() == set()

    asyncio.run(main())


def test_an_announced_exit_is_not_reported(stub: subprocess.Popen[bytes]) -> None:
    async def main() -> None:
        gone = Gone()
        proxies = Proxies(gone)
        before = len(os.listdir("/proc/self/fd"))
        proxies.watch("p", stub.pid)
        proxies.forget("p")
        proxies.forget("p")
        assert len(os.listdir("/proc/self/fd")) <= before
        assert (proxies.names(), gone.names) == (set(), [])

    asyncio.run(main())


def test_one_process_cannot_be_two_proxies(stub: subprocess.Popen[bytes]) -> None:
    async def main() -> None:
        proxies = Proxies(Gone())
        proxies.watch("p", stub.pid)
        with pytest.raises(RemoteFailure, match=f"process {stub.pid} is not proxy q"):
            proxies.watch("q", stub.pid)
        proxies.clear()

    asyncio.run(main())


@pytest.mark.parametrize("pid", [2**22 + 1, 2**40, -1])
def test_a_missing_process_is_refused(pid: int) -> None:
    async def main() -> None:
        with pytest.raises(RemoteFailure, match=f"process {pid} is not a proxy") as caught:
            Proxies(Gone()).watch("p", pid)
        assert caught.value.kind is ErrorKind.INVALID

    asyncio.run(main())


def test_proxies_given_up_by_tritonserver_are_killed_and_compiled_ones_named(
    stub: subprocess.Popen[bytes],
) -> None:
    async def main() -> None:
        gone = Gone()
        proxies = Proxies(gone)
        proxies.watch("process", stub.pid)
        proxies.watch("compiled", None)
        proxies.watch("other", None)
        assert proxies.end({"process", "compiled", "unknown"}) == {"compiled"}
        await asyncio.wait_for(gone.first.wait(), 30)
        assert gone.names == ["process"]
        assert proxies.names() == {"compiled", "other"}

    asyncio.run(main())


def test_a_proxy_that_just_exited_is_skipped(stub: subprocess.Popen[bytes]) -> None:
    """The exit is not noticed yet, and the pid may already belong to another process."""

    async def main() -> None:
        gone = Gone()
        proxies = Proxies(gone)
        proxies.watch("p", stub.pid)
        stub.kill()
        stub.wait()
        assert proxies.end({"p"}) == set()
        await asyncio.wait_for(gone.first.wait(), 30)

    asyncio.run(main())


def test_an_undeletable_region_does_not_prevent_a_detach(
    stub: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_proxies, "_region_of", lambda pid: tmp_path)  # a folder

    async def main() -> None:
        gone = Gone()
        proxies = Proxies(gone)
        proxies.watch("p", stub.pid)
        stub.kill()
        await asyncio.wait_for(gone.first.wait(), 30)
        assert proxies.names() == set()

    asyncio.run(main())
