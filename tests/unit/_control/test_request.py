"""One request to the dispatcher: how the channel is used, and what missing or unexpected answers mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytriton._control.connection import ControlRequest, LivenessCheck, ask
from pytriton._protocol import messages
from pytriton._protocol.control import ControlTimeout
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.exceptions import (
    DaemonNotRunningError,
    PyTritonDaemonError,
    PyTritonValidationError,
)


class Channel:
    """A channel with scripted answers that records how it was used."""

    def __init__(self, answer: Callable[[], messages.AnyMessage]) -> None:
        self._answer = answer
        self.asked: dict[str, Any] = {}

    def ask(self, message: Any, payloads: Any, **how: Any) -> messages.AnyMessage:
        self.asked = {"message": message, "payloads": payloads, **how}
        return self._answer()


def fail(error: Exception) -> Callable[[], messages.AnyMessage]:
    def raising() -> messages.AnyMessage:
        raise error

    return raising


def alive() -> bool:
    return True


WATCH = LivenessCheck(
    "The daemon at x", 0.5, alive, lambda silence: DaemonNotRunningError(f"gone: {silence}")
)


def asked(channel: Any, request: ControlRequest) -> messages.AnyMessage:
    return ask(channel, request, WATCH)


def test_ask_forwards_the_request_and_returns_the_answer() -> None:
    channel = Channel(messages.Done)

    def on_progress(_: messages.Progress) -> None: ...

    def on_unsolicited(_: messages.AnyMessage) -> None: ...

    message = messages.GetStatus()
    request = ControlRequest(message, [b"payload"], 3.0, on_progress, on_unsolicited)
    assert asked(channel, request) == messages.Done()
    assert channel.asked == {
        "message": message, "payloads": [b"payload"], "timeout_s": 3.0, "on_progress": on_progress,
        "life_sign_s": 0.5, "is_alive": alive, "on_unsolicited": on_unsolicited,
    }  # fmt: skip


def test_a_timeout_raises_the_error_of_the_liveness_check() -> None:
    with pytest.raises(DaemonNotRunningError, match="gone: no answer for 3 s"):
        asked(
            Channel(fail(ControlTimeout("no answer for 3 s"))), ControlRequest(messages.GetStatus())
        )


def test_an_unreadable_answer_means_another_version() -> None:
    channel = Channel(fail(messages.MalformedMessage("no tag")))
    words = r"The daemon at x sent an answer .*no tag.*Install the same version on both sides"
    with pytest.raises(PyTritonDaemonError, match=words):
        asked(channel, ControlRequest(messages.GetStatus()))


def test_failures_of_the_dispatcher_reach_the_caller_unchanged() -> None:
    failure = RemoteFailure(ErrorKind.EXISTS, "the name is taken")
    with pytest.raises(RemoteFailure) as caught:
        asked(Channel(fail(failure)), ControlRequest(messages.GetStatus()))
    assert caught.value is failure


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (messages.Unregister, [None], r"\(Unregister\): name: Expected str, got None\."),
        (messages.Unregister, [object()], r"\(Unregister\): Encoding objects of type object"),
        (messages.GetLogs, ["linear", "9"], "lines: Expected int, got str"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported_and_not_sent(
    kind: Any, values: list[Any], text: str
) -> None:
    """The dispatcher drops unreadable messages, so there would be no answer."""
    channel = Channel(messages.Done)
    with pytest.raises(PyTritonValidationError, match=text):
        asked(channel, ControlRequest(kind(*values)))
    assert channel.asked == {}
