"""What the registrant, the requester of a retry, and `status` learn about an instance's workers."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.fake_instance import Instance
from fakes.fake_worker import FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import RemoteFailure


def test_the_last_five_exits_are_recorded(loop: VirtualLoop) -> None:
    one = Instance(loop)
    for number in range(7):
        one.do(f"w{number} serves")
        one.do(f"w{number} answers a batch")
        one.do(f"w{number} crashes")
    info = one.info()
    assert [end.worker for end in info.exits] == ["w2", "w3", "w4", "w5", "w6"]
    assert (info.restarts, info.last_exit) == (7, "worker w6 exited")
    one.stop()


@pytest.mark.parametrize(
    ("history", "first"),
    [
        (["w0 serves"], None),
        (["w0 cannot load"], "model m could not be loaded: no file"),
        (["w0 crashes"], "model m: worker w0 exited before its callable was loaded"),
        (["after 10 s"], "model m: worker w0 did not start within 10 s (worker_start_timeout_s)"),
        (
            ["after 9 s", "w0 says hello", "after 99 s", "after 1 s"],
            "model m: worker w0 did not load its callable within 100 s (load_timeout_s)",
        ),
    ],
)
def test_the_registrant_learns_the_outcome_of_the_first_worker(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, history: list[str], first: str | None
) -> None:
    monkeypatch.setattr(FakeWorker, "last_lines", lambda worker: "loading weights: 3 %")
    one = Instance(loop)
    for step in history:
        assert not one.supervisor.first.done()
        one.do(step)
    failure: Any = one.supervisor.first.exception()
    assert (None if failure is None else failure.text) == first
    assert one.workers[0].alive is (failure is None)
    if failure is not None and "no file" not in failure.text:
        assert failure.traceback == "loading weights: 3 %"
    one.stop()


@pytest.mark.parametrize(
    ("steps", "reported"),
    [
        (["w2 cannot load"], "no file"),
        (["w2 serves"], None),
    ],
)
def test_the_requester_of_a_retry_learns_its_outcome(
    loop: VirtualLoop, steps: list[str], reported: str | None
) -> None:
    one = Instance(loop)
    for step in ("w0 serves", "w0 crashes", "w1 crashes", "is retried now", *steps):
        one.do(step)
    assert one.retry_task is not None
    if reported is None:
        assert one.retry_task.exception() is None
    else:
        with pytest.raises(RemoteFailure, match=reported):
            one.retry_task.result()
    one.stop()


@pytest.mark.parametrize(
    ("limit", "history", "exits", "reported"),
    [
        (None, ["w0 serves", "w0 crashes", "w1 crashes"], 2, None),
        (
            None,
            ["w0 serves", "w0 crashes", "w1 crashes", "after 4 s", "w2 crashes", "after 3 s"],
            3,
            "instance 0 is in a crash loop: 3 exits in a row, the last: "
            "model m: worker w2 exited before its callable was loaded; the next attempt is in 5 s",
        ),
        (
            None,
            ["w0 serves", "w0 crashes", "w1 crashes", "after 4 s", "w2 crashes", "after 8 s"],
            3,
            "instance 0 is in a crash loop: 3 exits in a row, the last: "
            "model m: worker w2 exited before its callable was loaded; the next attempt is in progress",
        ),
        (
            0,
            ["w0 serves", "w0 crashes"],
            1,
            "instance 0 has reached its restart limit: 1 exit, the last: worker w0 exited; "
            "no worker is started until you scale or replace the model (worker_restart_limit)",
        ),
        (
            0,
            [f"w{n} {what}" for n in range(3) for what in ("serves", "crashes in a batch")]
            + ["w3 serves"],
            3,
            "instance 0 is in a crash loop: 3 exits in a row, the last: "
            "worker w2 exited; the next worker is ready",
        ),
        (
            0,
            [f"w{n} {what}" for n in range(3) for what in ("serves", "crashes in a batch")]
            + ["w3 serves", "w3 answers a batch"],
            0,
            None,
        ),
    ],
)
def test_status_of_workers_that_exit_repeatedly(
    loop: VirtualLoop, limit: int | None, history: list[str], exits: int, reported: str | None
) -> None:
    one = Instance(loop, limit)
    for step in history:
        one.do(step)
    assert one.info().consecutive_exits == exits
    assert loop.ask(one.supervisor.problem) == reported
    one.stop()
