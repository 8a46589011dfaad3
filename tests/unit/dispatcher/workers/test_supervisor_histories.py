"""Histories of one instance: what happens to its workers, step by step, and the state after each step.

A virtual clock and fake workers: a delay takes no time, and the history says what a worker does. `w0` is the worker
started first, `w1` the second. After each step, the history gives the instance's state, the serving worker, the
remaining delay, and whether it is crash-looping.
"""

from __future__ import annotations

import asyncio

import pytest
from fakes.fake_instance import Instance
from fakes.fake_worker import SPEC
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.scaling.memory_policy import MEMORY
from pytriton.dispatcher.workers.memory_account import MemoryAccounts

#: Steps, each with the state of the instance after it.
History = list[tuple[str, str]]


_SERVES: History = [("w0 says hello", "loading"), ("w0 serves", "ready w0")]
_HISTORIES: dict[str, tuple[int | None, History]] = {
    "serves": (None, _SERVES),
    "its first worker cannot be loaded: the registration fails": (
        None,
        [("w0 cannot load", "failed crash-looping"), ("after 1000 s", "failed crash-looping")],
    ),
    "its first worker does not start": (
        None,
        [("after 9 s", "starting"), ("after 2 s", "failed crash-looping")],
    ),
    "crashes while it loads, three times, then serves": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 says hello", "loading"),
            ("w1 crashes", "backoff 4 s"),
            ("after 4 s", "starting"),
            ("w2 crashes", "backoff 8 s crash-looping"),
            ("after 8 s", "starting crash-looping"),
            ("w3 says hello", "loading crash-looping"),
            ("w3 crashes", "backoff 16 s crash-looping"),
            ("after 16 s", "starting crash-looping"),
            ("w4 serves", "ready w4"),
            ("w4 answers a batch", "ready w4"),
            ("w4 crashes", "starting"),
        ],
    ),
    "crashes without having answered a batch: the delays keep growing": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 serves", "ready w1"),
            ("w1 crashes", "backoff 4 s"),
            ("after 4 s", "starting"),
            ("w2 serves", "ready w2"),
            ("w2 crashes", "backoff 8 s crash-looping"),
        ],
    ),
    "serves for long without a batch, which is as good": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 serves", "ready w1"),
            ("after 61 s", "ready w1"),
            ("w1 crashes", "starting"),
        ],
    ),
    "delays grow up to the longest": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 cannot load", "backoff 4 s"),
            ("after 4 s", "starting"),
            ("w2 cannot load", "backoff 8 s crash-looping"),
            ("after 8 s", "starting crash-looping"),
            ("w3 cannot load", "backoff 16 s crash-looping"),
            ("after 16 s", "starting crash-looping"),
            ("w4 cannot load", "backoff 32 s crash-looping"),
            ("after 32 s", "starting crash-looping"),
            ("w5 cannot load", "backoff 60 s crash-looping"),
            ("after 60 s", "starting crash-looping"),
            ("w6 cannot load", "backoff 60 s crash-looping"),
        ],
    ),
    "does not say hello, or loads too long": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("after 10 s", "backoff 4 s"),
            ("after 4 s", "starting"),
            ("w2 says hello", "loading"),
            ("after 99 s", "loading"),
            ("after 1 s", "backoff 8 s crash-looping"),
        ],
    ),
    "hangs or crashes in a batch: the batch is blamed": (
        0,
        [
            *_SERVES,
            ("w0 hangs", "ready w0"),
            ("w0 is killed", "starting"),
            ("w1 serves", "ready w1"),
            ("w1 crashes in a batch", "starting"),
            ("w2 serves", "ready w2"),
            ("w2 crashes in a batch", "starting"),
            ("w3 serves", "ready w3"),
        ],
    ),
    "crashes in a batch between other crashes: no delay for that": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 crashes", "backoff 4 s"),
            ("after 4 s", "starting"),
            ("w2 serves", "ready w2"),
            ("w2 crashes in a batch", "starting"),
            ("w3 serves", "ready w3"),
            ("w3 crashes", "backoff 8 s crash-looping"),
        ],
    ),
    "is recycled without an interruption": (
        None,
        [
            *_SERVES,
            ("w0 is due", "ready w0"),
            ("w1 says hello", "ready w0"),
            ("w1 serves", "ready w1"),
            ("w0 crashes", "ready w1"),
            ("w1 is due", "ready w1"),
            ("w2 serves", "ready w2"),
        ],
    ),
    "accepts no other lane: recycled at once, then after delays": (
        None,
        [
            *_SERVES,
            ("w0 takes no other lane", "ready w0"),
            ("w1 serves", "ready w1"),
            ("w1 answers a batch", "ready w1"),
            ("w1 takes no other lane", "ready w1"),
            ("after 3 s", "ready w1"),
            ("after 1 s", "ready w1"),
            ("w2 serves", "ready w2"),
            ("w2 takes no other lane", "ready w2"),
            ("w2 crashes", "starting"),
            ("w3 serves", "ready w3"),
            ("after 61 s", "ready w3"),
            ("w3 takes no other lane", "ready w3"),
            ("w4 serves", "ready w4"),
        ],
    ),
    "exits while it is recycled": (
        None,
        [
            *_SERVES,
            ("w0 is due", "ready w0"),
            ("w0 crashes", "backoff"),
            ("w1 serves", "ready w1"),
            ("w1 answers a batch", "ready w1"),
        ],
    ),
    "its replacement cannot be loaded: it keeps serving until the next attempt": (
        None,
        [
            *_SERVES,
            ("w0 is due", "ready w0"),
            ("w1 cannot load", "ready w0"),
            ("after 59 s", "ready w0"),
            ("after 2 s", "ready w0"),
            ("w2 serves", "ready w2"),
        ],
    ),
    "exits after its replacement could not be loaded": (
        None,
        [
            *_SERVES,
            ("w0 is due", "ready w0"),
            ("w1 cannot load", "ready w0"),
            ("w0 crashes", "starting"),
            ("w2 serves", "ready w2"),
        ],
    ),
    "exits while it is recycled, and so does its replacement": (
        None,
        [
            *_SERVES,
            ("w0 is due", "ready w0"),
            ("w0 crashes", "backoff"),
            ("w1 crashes", "starting"),
            ("w2 serves", "ready w2"),
        ],
    ),
    "no process can be started: retried later": (
        None,
        [
            *_SERVES,
            ("descriptors are short", "ready w0"),
            ("w0 crashes", "backoff 4 s"),
            ("descriptors are short", "backoff 4 s"),
            ("after 4 s", "backoff 8 s crash-looping"),
            ("is retried now", "starting crash-looping"),
            ("w1 serves", "ready w1"),
        ],
    ),
    "no replacement process can be started: it keeps serving": (
        None,
        [
            *_SERVES,
            ("descriptors are short", "ready w0"),
            ("w0 is due", "ready w0"),
            ("after 61 s", "ready w0"),
            ("w1 serves", "ready w1"),
            ("w1 crashes", "starting"),
        ],
    ),
    "reaches its restart limit, and is retried on request": (
        1,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 cannot load", "failed crash-looping"),
            ("after 10000 s", "failed crash-looping"),
            ("is retried now", "starting"),
            ("w2 cannot load", "failed crash-looping"),
            ("is retried now", "starting crash-looping"),
            ("w3 serves", "ready w3"),
            ("w3 answers a batch", "ready w3"),
            ("w3 crashes", "starting"),
        ],
    ),
    "restart limit 0": (
        0,
        [*_SERVES, ("w0 crashes", "failed crash-looping"), ("is retried now", "starting")],
    ),
    "retried now during its back-off": (
        None,
        [
            *_SERVES,
            ("w0 crashes", "starting"),
            ("w1 crashes", "backoff 4 s"),
            ("after 1 s", "backoff 3 s"),
            ("is retried now", "starting"),
            ("is retried now", "starting"),
            ("w2 serves", "ready w2"),
            ("is retried now", "ready w2"),
        ],
    ),
}


@pytest.mark.parametrize(("limit", "history"), _HISTORIES.values(), ids=_HISTORIES)
def test_a_history(loop: VirtualLoop, limit: int | None, history: History) -> None:
    one = Instance(loop, limit)
    reported = []
    for step, _ in history:
        one.do(step)
        reported.append((step, one.said()))
        one.look()
    assert reported == history
    started = len(one.workers)
    for worker in one.workers:
        if worker.is_ending and worker.alive:
            loop.ask(worker.end)
    one.stop()
    assert one.said() == "stopped"
    assert not any(worker.alive for worker in one.workers)
    loop.advance(1000.0)
    assert len(one.workers) == started
    if one.retry_task is not None and not one.retry_task.cancelled():
        one.retry_task.exception()


def test_an_internal_error_is_reported_as_such(loop: VirtualLoop) -> None:
    one = Instance(loop)
    for step in ("w0 serves", "descriptors are short", "w0 crashes"):
        one.do(step)
    assert (
        one.info().last_exit == "model m: internal error: OSError: [Errno 24] Too many open files"
    )
    one.stop()


def test_an_internal_error_after_a_load_stops_that_worker(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Instance(loop)
    for step in ("w0 serves", "w0 crashes"):
        one.do(step)

    async def report(ready: str | None) -> None:
        if ready == "w1":
            raise ValueError("no such proxy")

    monkeypatch.setattr(one.supervisor, "_on_change", report)
    one.do("w1 serves")
    assert one.said() == "backoff 4 s"
    assert not one.workers[1].alive
    for step in ("after 4 s", "w2 serves"):
        one.do(step)
    assert one.said() == "ready w2"
    one.stop()


def test_a_retry_fails_after_an_internal_error_ended_the_supervisor(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Instance(loop)
    one.do("w0 serves")

    async def back_off(*, blameless: bool) -> None:
        raise ValueError("no such worker")

    monkeypatch.setattr(one.supervisor, "_back_off", back_off)
    for step in ("w0 crashes", "is retried now"):
        one.do(step)
    assert one.supervisor.is_crash_looping
    assert one.retry_task is not None
    assert one.retry_task.done()
    assert "internal error" in str(one.retry_task.exception())
    one.stop()


def test_a_recycling_interrupted_by_a_stop_keeps_no_memory(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = MemoryAccounts({MEMORY: 1 << 30})
    account = accounts.open(SPEC)
    one = Instance(loop, account=account)
    for step in ("w0 serves", "w0 is due"):
        one.do(step)
    (claim,) = accounts.claims()
    loop.ask(lambda: accounts.grant(claim.key))
    loop.settle()

    async def report(ready: str | None) -> None:
        if ready is not None:
            await asyncio.Event().wait()  # as where proxies wait for a worker, too

    monkeypatch.setattr(one.supervisor, "_on_change", report)
    one.do("w1 serves")
    assert account.extra == 1
    one.stop()
    assert not any(worker.alive for worker in one.workers)
    assert account.extra == 0


def test_the_start_of_a_fork_server_counts_as_the_start_of_the_worker(loop: VirtualLoop) -> None:
    one = Instance(loop, fork_server_s=4.0)
    states = []
    for step in ("after 4 s", "after 5 s", "after 1 s"):
        one.do(step)
        states.append(one.said())
    assert states == ["starting", "starting", "failed crash-looping"]
    assert "did not start within 10 s" in str(one.info().last_exit)
    one.stop()
