"""How long a worker has to say hello and to load, and what is told of one that takes longer or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from fakes.fake_instance import Instance
from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.workers.load_wait import until_loaded, wait_any

_SPEC = msgspec.structs.replace(SPEC, load_timeout_s=100.0)


class Talkative(FakeWorker):
    """A worker that has printed something."""

    def last_lines(self) -> str:
        return "downloading weights: 3 %"


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()
    asyncio.set_event_loop(None)


def _load(loop: VirtualLoop, *steps: tuple[float, str]) -> tuple[Talkative, list[float]]:
    """Load a worker that does something at some times; return it, and when it was known to have said hello."""
    hellos: list[float] = []

    async def loaded() -> Talkative:
        worker = Talkative(0, _SPEC, greeted=False)
        doing = {
            "hello": worker.greet,
            "ready": worker.loaded,
            "fails": lambda: worker.failed(messages.WorkerFailed("w0", "no file", "a traceback")),
            "exits": worker.end,
        }
        for at, what in steps:
            loop.call_at(at, doing[what])
        ended: list[int] = []
        worker.exited.add_done_callback(lambda exited: ended.append(exited.result()))
        try:
            await until_loaded(worker, _SPEC, 10.0, 0.0, greeted=lambda: hellos.append(loop.time()))
        except RemoteFailure:
            await asyncio.sleep(0)
            assert ended, "one that is not ready is ended"
            raise
        assert not ended
        worker.end()
        return worker

    return loop.run(loaded()), hellos


@pytest.mark.parametrize(
    ("steps", "hellos"),
    [
        ([(9.0, "hello"), (109.0, "ready")], [9.0]),
        # A thread of a registrant's may be ready before its hello has been heard.
        ([(3.0, "ready")], []),
    ],
)
def test_one_that_is_ready_in_time(
    loop: VirtualLoop, steps: list[tuple[float, str]], hellos: list[float]
) -> None:
    assert _load(loop, *steps)[1] == hellos


@pytest.mark.parametrize(
    ("steps", "at", "text", "details"),
    [
        (
            [],
            10.0,
            "model m: worker w0 did not start within 10 s",
            "downloading weights: 3 %",
        ),
        (
            [(9.0, "hello")],
            109.0,
            "model m: worker w0 did not load its callable within 100 s (load_timeout_s)",
            "downloading weights: 3 %",
        ),
        (
            [(1.0, "hello"), (5.0, "fails")],
            5.0,
            "model m could not be loaded: no file",
            "a traceback",
        ),
        (
            [(2.0, "exits")],
            2.0,
            "model m: worker w0 exited before its callable was loaded",
            "downloading weights: 3 %",
        ),
    ],
    ids=["no hello", "loads for ever", "fails", "exits"],
)
def test_one_that_is_not(
    loop: VirtualLoop, steps: list[tuple[float, str]], at: float, text: str, details: str
) -> None:
    with pytest.raises(RemoteFailure) as caught:
        _load(loop, *steps)
    assert (caught.value.text, caught.value.traceback) == (text, details)
    assert loop.time() == at


def test_the_start_of_a_fork_server_counts_as_the_worker_s(loop: VirtualLoop) -> None:
    one = Instance(loop, fork_server_s=4.0)
    said = []
    for step in ("after 4 s", "after 5 s", "after 1 s"):
        one.do(step)
        said.append(one.said())
    assert said == ["starting", "starting", "failed hopeless"]
    assert "did not start within 10 s" in str(one.info().last_exit)
    one.stop()


def test_waiting_for_any_of_some_has_an_end(loop: VirtualLoop) -> None:
    async def waited() -> float:
        one, other = loop.create_future(), loop.create_future()
        await wait_any(one, other, timeout_s=7.0)
        loop.call_later(2.0, other.set_result, None)
        await wait_any(one, other)
        return loop.time()

    assert loop.run(waited()) == 9.0
