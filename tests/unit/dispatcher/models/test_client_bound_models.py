"""Models that end with a process: ephemeral ones, and those that run in its threads."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.client_bound_models import ClientBoundModels, HostedModels
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.workers.hosted_worker import Registrant


class Served:
    """The part of a registration that ends; `end` replaces the registry's."""

    def __init__(self, refusal: str | None = None) -> None:
        self.there: list[Registration] = []
        self.ended: list[str] = []
        self.given_up: list[str] = []
        self.all_ended = asyncio.Event()
        self._expected = 0
        self._refusal = refusal

    def registration(self, name: str) -> Registration:
        self._expected += 1

        async def disable(why: str) -> None:
            self.given_up.append(why)

        one = Registration.__new__(Registration)
        one._declared = cast(Any, SimpleNamespace(spec=SimpleNamespace(name=name)))
        one.pool = cast(Any, SimpleNamespace(disable=disable))
        self.there.append(one)
        return one

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
        tenants = ClientBoundModels(served.end)
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


def test_nothing_stays_of_replaced_ephemeral_models(sim: SimulatedDaemon) -> None:
    """Payloads may take hundreds of megabytes, and the process may live for months."""
    there = []
    for name in "nmm":
        sim.served(sim.client.register(name, replace=True, ephemeral=True))
        there.append(weakref.ref(sim.services.registry.served.by_name(name)))
    sim.answered(sim.client.ask(messages.Unregister("n")))
    sim.advance(60.0)
    gc.collect()
    assert [one() for one in there] == [None, None, sim.services.registry.served.by_name("m")]
    sim.client.end_process()
    sim.advance(60.0)
    assert sim.is_clean("m")


def registrant(pid: int) -> Any:
    return SimpleNamespace(pid=pid, ended=asyncio.get_running_loop().create_future())


def test_a_model_in_threads_is_disabled_before_it_is_unregistered() -> None:
    async def main() -> None:
        served, gone = Served("not in order"), registrant(4242)
        HostedModels(served.end).expect(served.registration("m"), cast(Registrant, gone))
        gone.ended.set_result(None)
        await asyncio.wait_for(served.all_ended.wait(), 30)
        assert served.ended == ["m"]
        assert served.given_up == [
            "model m: process 4242, which ran it in its threads (isolation='thread'), has exited"
        ]

    asyncio.run(main())


def test_a_released_model_is_left_alone() -> None:
    async def main() -> None:
        served, released = Served(), registrant(4242)
        orphans = HostedModels(served.end)
        orphans.expect(served.registration("m"), cast(Registrant, released))
        released.ended.cancel()
        # A later task on the loop shows that nothing was started for it.
        gone = registrant(4343)
        orphans.expect(served.registration("n"), cast(Registrant, gone))
        served._expected = 1
        gone.ended.set_result(None)
        await asyncio.wait_for(served.all_ended.wait(), 30)
        assert served.ended == ["n"]

    asyncio.run(main())
