"""What is kept and told of one instance's workers: to who registered it, to who heals it, in its status."""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes.fake_instance import Instance
from support.fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import RemoteFailure


def test_what_is_kept_of_workers_that_ended(loop: VirtualLoop) -> None:
    one = Instance(loop)
    for number in range(7):
        one.do(f"w{number} serves")
        one.do(f"w{number} answers a batch")
        one.do(f"w{number} crashes")
    info = one.info()
    assert [end.worker for end in info.ends] == ["w2", "w3", "w4", "w5", "w6"]
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
            ["w0 says hello", "after 100 s"],
            "model m: worker w0 did not load its callable within 100 s (load_timeout_s)",
        ),
    ],
)
def test_who_registered_it_is_told_how_the_first_worker_did(
    loop: VirtualLoop, history: list[str], first: str | None
) -> None:
    one = Instance(loop)
    for step in history:
        assert not one.supervisor.first.done()
        one.do(step)
    failure: Any = one.supervisor.first.exception()
    assert (None if failure is None else failure.text) == first
    one.stop()


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (["w2 cannot load"], "no file"),
        (["w2 serves"], None),
    ],
)
def test_who_heals_it_is_told_how_that_went(
    loop: VirtualLoop, steps: list[str], told: str | None
) -> None:
    one = Instance(loop)
    for step in ("w0 serves", "w0 crashes", "w1 crashes", "is healed", *steps):
        one.do(step)
    assert one.healing is not None
    if told is None:
        assert one.healing.exception() is None
    else:
        with pytest.raises(RemoteFailure, match=told):
            one.healing.result()
    one.stop()


@pytest.mark.parametrize(
    ("limit", "history", "told"),
    [
        (None, ["w0 serves", "w0 crashes", "w1 crashes"], None),
        (
            None,
            ["w0 serves", "w0 crashes", "w1 crashes", "after 4 s", "w2 crashes", "after 3 s"],
            "instance 0 is in a crash loop: 3 workers in a row ended without having answered a batch, the last: "
            "model m: worker w2 exited before its callable was loaded; the next one is started in 5.0 s",
        ),
        (
            None,
            ["w0 serves", "w0 crashes", "w1 crashes", "after 4 s", "w2 crashes", "after 8 s"],
            "instance 0 is in a crash loop: 3 workers in a row ended without having answered a batch, the last: "
            "model m: worker w2 exited before its callable was loaded; the next one is being loaded",
        ),
        (
            0,
            ["w0 serves", "w0 crashes"],
            "instance 0 has been given up: 1 worker ended without having answered a batch, the last: worker w0 exited; "
            "no other one is started (worker_restart_limit) until you scale or replace it",
        ),
        (
            0,
            [f"w{n} {what}" for n in range(3) for what in ("serves", "crashes in a batch")]
            + ["w3 serves"],
            "instance 0 is in a crash loop: 3 workers in a row ended without having answered a batch, the last: "
            "worker w2 exited; the next one is ready",
        ),
    ],
)
def test_what_status_says_of_workers_that_end_one_after_the_other(
    loop: VirtualLoop, limit: int | None, history: list[str], told: str | None
) -> None:
    one = Instance(loop, limit)
    for step in history:
        one.do(step)
    assert loop.ask(one.supervisor.problem) == told
    one.stop()
