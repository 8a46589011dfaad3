"""Models that go when a process ends: temporary ones, and those that run in its threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton.dispatcher.models.hosted_models import HostedModels
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.temporary_models import TemporaryModels
from pytriton.dispatcher.workers.one_worker.registrant import Registrant
from pytriton.ipc.errors import ErrorKind, RemoteFailure


class Served:
    """A registration, as far as it is ended; `end` is what the registry would do."""

    def __init__(self, refusal: str | None = None) -> None:
        self.ended: list[str] = []
        self.given_up: list[str] = []
        self.all_ended = asyncio.Event()
        self._expected = 0
        self._refusal = refusal

    def registration(self, name: str) -> Registration:
        self._expected += 1

        async def give_up(why: str) -> None:
            self.given_up.append(why)

        pool = SimpleNamespace(give_up=give_up)
        return cast(Registration, SimpleNamespace(spec=SimpleNamespace(name=name), pool=pool))

    async def end(self, registration: Registration) -> None:
        self.ended.append(registration.spec.name)
        if len(self.ended) == self._expected:
            self.all_ended.set()
        if self._refusal:
            raise RemoteFailure(ErrorKind.NOT_FOUND, self._refusal)


def process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


@pytest.mark.parametrize("refusal", [None, "it is gone already"])
def test_all_models_of_a_process_end_with_it_and_no_others(refusal: str | None) -> None:
    async def main() -> None:
        served = Served(refusal)
        tenants = TemporaryModels(served.end)
        with process() as one, process() as other:
            for name in ("a", "b"):
                tenants.add(served.registration(name), one.pid)
            one.kill()
            await asyncio.wait_for(served.all_ended.wait(), 30)
            tenants.add(served.registration("c"), other.pid)
            assert sorted(served.ended) == ["a", "b"]
            served.all_ended.clear()
            other.kill()
            await asyncio.wait_for(served.all_ended.wait(), 30)
        assert sorted(served.ended) == ["a", "b", "c"]

    asyncio.run(main())


def registrant(pid: int) -> Any:
    return SimpleNamespace(pid=pid, ended=asyncio.get_running_loop().create_future())


def test_a_model_in_threads_is_given_up_before_it_is_unregistered() -> None:
    async def main() -> None:
        served, gone = Served("not in order"), registrant(4242)
        HostedModels(served.end).expect(served.registration("m"), cast(Registrant, gone))
        gone.ended.set_result(None)
        await asyncio.wait_for(served.all_ended.wait(), 30)
        assert served.ended == ["m"]
        assert served.given_up == [
            "model m: process 4242, which ran it in its threads (isolation='thread'), has ended"
        ]

    asyncio.run(main())


def test_a_model_that_was_released_is_left_alone() -> None:
    async def main() -> None:
        served, released = Served(), registrant(4242)
        orphans = HostedModels(served.end)
        orphans.expect(served.registration("m"), cast(Registrant, released))
        released.ended.cancel()
        # What comes after it on the loop shows that nothing was begun for it.
        gone = registrant(4343)
        orphans.expect(served.registration("n"), cast(Registrant, gone))
        served._expected = 1
        gone.ended.set_result(None)
        await asyncio.wait_for(served.all_ended.wait(), 30)
        assert served.ended == ["n"]

    asyncio.run(main())
