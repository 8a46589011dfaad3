"""A Triton Python model's `is_ready`, awaited while the model loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fakes.fake_dispatcher import FakeDispatcher
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton.worker.callables import LoadError
from pytriton.worker.python_model import readiness
from pytriton.worker.python_model.readiness import ReadinessPoller, wait_ready


def test_time_before_readiness_counts_as_loading() -> None:
    """Otherwise the dispatcher's timeout comes first, and hides the model's own reason."""
    asked = []

    def is_ready() -> bool:
        asked.append(True)
        return False

    with pytest.raises(LoadError, match=r"is_ready\(\) returned False.*load_timeout_s=6"):
        wait_ready("model", is_ready, 6.0, begun=time.monotonic() - 5.5)
    assert len(asked) == 1


def test_is_ready_is_called_until_it_returns_true() -> None:
    answers = iter([False, True])
    wait_ready("model", lambda: next(answers), 100.0, begun=time.monotonic())
    assert list(answers) == []


@contextmanager
def polled(is_ready: Callable[[], bool], dispatcher: FakeDispatcher) -> Iterator[None]:
    poller = ReadinessPoller("w1", dispatcher.rundir.control_endpoint, is_ready)
    try:
        yield
    finally:
        poller.stop()


def reported(dispatcher: FakeDispatcher) -> list[tuple[bool, str]]:
    heard = (one for one in dispatcher.heard if isinstance(one, messages.WorkerReadiness))
    return [(one.ready, one.why) for one in heard]


def test_a_system_exit_means_not_ready(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "EVERY_S", 0.01)
    exits = iter([True, False])

    def is_ready() -> bool:
        if next(exits, False):
            raise SystemExit(3)
        return True

    with polled(is_ready, dispatcher):
        eventually(lambda: len(reported(dispatcher)) >= 2, lambda: str(reported(dispatcher)))
        assert reported(dispatcher)[:2] == [(False, "is_ready() raised SystemExit: 3"), (True, "")]


def test_a_change_is_reported_again(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon may have missed it during an upgrade."""
    monkeypatch.setattr(readiness, "EVERY_S", 0.01)
    monkeypatch.setattr(readiness, "AGAIN_S", 0.02)
    answers = iter([True, True, False])
    with polled(lambda: next(answers, True), dispatcher):
        eventually(lambda: len(reported(dispatcher)) >= 4, lambda: str(reported(dispatcher)))
        first, *others = [ready for ready, _ in reported(dispatcher)]
        assert not first  # nothing before the first change
        assert all(others)
