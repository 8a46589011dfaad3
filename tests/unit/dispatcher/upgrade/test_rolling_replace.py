"""After an upgrade to another protocol, processes with the previous one are replaced one after another."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from fakes.fake_worker import FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.upgrade.rolling_replace import RollingReplacer
from pytriton.dispatcher.upgrade.snapshot import HandOver

NOW, FORMER = messages.PROTOCOL, messages.PROTOCOL - 1


class Upgraded:
    """A daemon after its upgrade: `w1:old w2` means two workers, of which one uses the previous protocol."""

    def __init__(self, loop: VirtualLoop, workers: str, server: int = NOW) -> None:
        self.loop = loop
        self.history: list[str] = []
        self.server_fails: Exception | None = None
        supervised = []
        self.workers: dict[str, FakeWorker] = {}
        for text in workers.split():
            name, _, is_old = text.partition(":")
            supervised.append(
                SimpleNamespace(
                    worker=SimpleNamespace(name=name, protocol=FORMER if is_old else NOW)
                )
            )
            worker = loop.ask(partial(FakeWorker, int(name[1:])))
            worker.recycle_due.add_done_callback(partial(self._is_replaced, name))
            self.workers[name] = worker
        supervised.append(SimpleNamespace(worker=None))  # a standby that just crashed
        pools = [SimpleNamespace(pool=SimpleNamespace(supervised=supervised))]
        state = SimpleNamespace(registrations=pools, server=SimpleNamespace(protocol=server))
        served = SimpleNamespace(worker=self._worker)
        renewing = RollingReplacer(cast(ServedModels, served), self._replace_server)
        self.task = loop.create_task(renewing.run(cast(HandOver, state)))
        loop.settle()

    def _is_replaced(self, name: str, due: asyncio.Future[messages.WorkerRecycleDue]) -> None:
        self.history.append(name)

    def _worker(self, name: str) -> tuple[None, FakeWorker]:
        if name not in self.workers:
            raise RemoteFailure(ErrorKind.NOT_FOUND, "no such worker")
        return None, self.workers[name]

    async def _replace_server(self, why: str) -> None:
        assert f"protocol {FORMER} of a previous version" in why
        if self.server_fails is not None:
            raise self.server_fails
        self.history.append("server")

    def ends(self, name: str) -> None:
        self.workers[name].end()
        self.loop.settle()

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.alive:
                worker.end()
        self.loop.settle()
        assert self.task.done()


def test_workers_are_replaced_one_by_one_and_tritonserver_last(loop: VirtualLoop) -> None:
    one = Upgraded(loop, "w1:old w2 w3:old", FORMER)
    assert one.history == ["w1"]
    loop.advance(59.0)
    assert one.history == ["w1"]
    one.ends("w1")
    assert one.history == ["w1", "w3"]
    one.ends("w3")
    assert one.history == ["w1", "w3", "server"]
    assert not one.workers["w2"].recycle_due.done()
    one.close()


def test_a_worker_that_cannot_be_replaced_delays_the_others_by_a_minute(loop: VirtualLoop) -> None:
    one = Upgraded(loop, "w1:old w2:old", FORMER)
    loop.advance(61.0)
    assert one.history == ["w1", "w2"]
    loop.advance(61.0)
    assert one.history == ["w1", "w2", "server"]
    one.close()


@pytest.mark.parametrize("how", ["it has ended", "its model is gone"])
def test_workers_that_already_exited_are_skipped(loop: VirtualLoop, how: str) -> None:
    one = Upgraded(loop, "w1:old w2:old w3:old")
    if how == "it has ended":
        one.ends("w2")
    else:
        one.workers.pop("w2").end()
    one.ends("w1")
    assert one.history == ["w1", "w3"]
    one.close()


def test_after_an_upgrade_within_a_protocol_nothing_happens(loop: VirtualLoop) -> None:
    one = Upgraded(loop, "w1 w2")
    assert one.task.done()
    assert one.history == []
    one.close()


@pytest.mark.parametrize(
    "why", [RemoteFailure(ErrorKind.INVALID, "requires frontend=native"), KeyError("a fault")]
)
def test_a_tritonserver_that_cannot_be_replaced_keeps_serving(
    loop: VirtualLoop, why: Exception
) -> None:
    one = Upgraded(loop, "w1:old", FORMER)
    one.server_fails = why
    one.ends("w1")
    assert one.task.exception() is None
    one.close()


def test_sequences_in_progress_delay_tritonservers_replacement(loop: VirtualLoop) -> None:
    one = Upgraded(loop, "w1:old", FORMER)
    one.server_fails = RemoteFailure(ErrorKind.UNAVAILABLE, "2 sequences are in progress")
    one.ends("w1")
    loop.advance(60.0)
    assert one.history == ["w1"]
    one.server_fails = None
    loop.advance(6.0)
    assert one.history == ["w1", "server"]
    one.close()
