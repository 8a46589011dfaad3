"""How a proxy gets a lane, and its requests to the dispatcher."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import LaneError
from pytriton.proxy_backend.python_proxy.attachment import Attachment


class Control:
    """The dispatcher: gives the test's answers in order."""

    def __init__(self) -> None:
        self.answers: list[messages.AnyMessage] = []
        self.asked: list[Any] = []
        self.closed = False

    def ask(self, question: Any, *, timeout_s: float | None) -> messages.AnyMessage:
        assert timeout_s is None  # it answers once there is a worker
        self.asked.append(question)
        return self.answers.pop(0)

    def send(self, message: Any) -> None:
        self.asked.append(message)

    def flush(self) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed = True


class Calls:
    """Replaces the object that makes the worker's calls."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def serve(self, lane_path: str) -> None:
        self.did.append(f"serve {lane_path}")

    def retire(self) -> None:
        self.did.append("retire")

    def end(self) -> None:
        self.did.append("end")


@pytest.fixture
def worker() -> Iterator[str]:
    """The path on which a worker listens for lanes."""
    with (
        tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        path = f"{folder}/w.sock"
        listener.bind(path)
        listener.listen()
        yield path


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def attachment(control: Control, calls: Calls) -> Iterator[Attachment]:
    any_control: Any = control
    any_calls: Any = calls
    made = Attachment(any_control, "r1", "m_0_0:7", any_calls, version=2)
    yield made
    made.drop()


def test_an_unreachable_worker_is_reported_and_another_requested(
    attachment: Attachment, control: Control, calls: Calls, worker: str
) -> None:
    gone = str(Path(worker).with_name("gone.sock"))
    control.answers = [
        messages.Attached("w1", gone),
        messages.Attached("w2", worker, execution_timeout_s=5.0, tracing=True),
    ]
    attachment.avoid = ["w9"]
    lane = attachment.attach()
    assert attachment.attach() is lane
    assert [(ask.lost, ask.avoid) for ask in control.asked] == [(None, ["w9"]), ("w1", [])]
    first = control.asked[0]
    assert (first.registration, first.instance, first.pid, first.version) == (
        "r1", "m_0_0:7", os.getpid(), 2,
    )  # fmt: skip
    assert (attachment.worker, attachment.execution_timeout_s, attachment.tracing) == (
        "w2", 5.0, True,
    )  # fmt: skip
    assert calls.did == [f"serve {worker}"]


def test_detaching_a_lane_also_ends_the_workers_calls(
    attachment: Attachment, control: Control, calls: Calls, worker: str
) -> None:
    control.answers = [messages.Attached("w1", worker)]
    attachment.attach()
    attachment.drop()
    attachment.drop()
    assert attachment.lane is None
    assert calls.did[1:] == ["retire"]
    attachment.close()
    assert control.asked[-1] == messages.Detach("r1", "m_0_0:7")
    assert control.closed
    assert calls.did[-1] == "end"


def test_the_dispatcher_decides_about_a_batch(attachment: Attachment, control: Control) -> None:
    attachment.worker = "w1"
    verdict = messages.Verdict("wait", wait_s=2.0)
    control.answers = [verdict] * 3
    assert attachment.judge_loss(lost_workers=1, final=True) == verdict
    attachment.judge_overdue(was_read=True, since=time.monotonic() - 3, lost_workers=2)
    attachment.judge_overdue(was_read=False, since=time.monotonic() - 3)
    lost, overdue, unread = control.asked
    assert lost == messages.LaneLost("r1", "w1", 1, final=True)
    assert (overdue.was_read, overdue.lost_workers) == (True, 2)
    assert overdue.read_ms >= 3000
    assert (unread.was_read, unread.read_ms) == (False, 0)


def test_an_unrelated_answer_is_a_protocol_violation(
    attachment: Attachment, control: Control
) -> None:
    control.answers = [messages.Verdict("retry"), messages.Attached("w1", "/x")]
    with pytest.raises(LaneError, match="to Attach: Verdict"):
        attachment.attach()
    with pytest.raises(LaneError, match="not a Verdict: Attached"):
        attachment.judge_loss(lost_workers=1)
