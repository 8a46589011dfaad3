"""A request on a channel to the dispatcher: how long a client waits for the answer, and the error if none comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton._protocol import messages
from pytriton.exceptions import PyTritonDaemonError, PyTritonValidationError

if TYPE_CHECKING:
    from pytriton._protocol import control

OnProgress = Callable[[messages.Progress], None]


@dataclass(frozen=True)
class ControlRequest:
    """A message to the dispatcher.

    Args:
        message: the request
        payloads: frames that are sent with it
        silence_s: maximum silence in seconds; None waits for as long as the daemon lives
        on_progress: called with every progress report before the answer
        on_unasked: called with messages that the dispatcher sends unprompted
    """

    message: messages.AnyMessage
    payloads: Sequence[bytes] = ()
    silence_s: float | None = None
    on_progress: OnProgress | None = None
    on_unasked: control.OnUnasked | None = None


@dataclass(frozen=True)
class LivenessCheck:
    """The liveness check of a silent daemon.

    Args:
        daemon: its name in error texts
        look_s: interval between checks, in seconds
        is_alive: the check
        no_answer: returns the exception for a request without an answer, whether the daemon lives or not
    """

    daemon: str
    look_s: float
    is_alive: Callable[[], bool]
    no_answer: Callable[[control.ControlTimeout], PyTritonDaemonError]


def ask(
    channel: control.ControlClient, question: ControlRequest, watch: LivenessCheck
) -> messages.AnyMessage:
    """Return the answer to a request.

    Raises:
        PyTritonValidationError: a value in the request has a wrong type; nothing was sent
        RemoteFailure: the dispatcher answered with a failure; see `exception_of`
        DaemonNotRunningError: the daemon exited before it answered, or was silent too long
        PyTritonDaemonError: it refuses this client, or is another version
    """
    from pytriton._protocol.control import ControlTimeout

    _check_types(question.message)
    try:
        return channel.ask(
            question.message,
            question.payloads,
            timeout_s=question.silence_s,
            on_progress=question.on_progress,
            life_sign_s=watch.look_s,
            is_alive=watch.is_alive,
            on_unasked=question.on_unasked,
        )
    except ControlTimeout as silence:
        raise watch.no_answer(silence) from None
    except messages.MalformedMessage as error:
        raise PyTritonDaemonError(
            f"{watch.daemon} sent an answer that this version of pytriton-daemon does not understand ({error}). "
            "Install the same version on both sides, then run `pytriton-daemon restart` there."
        ) from error


def _check_types(message: messages.AnyMessage) -> None:
    """Refuse a message that the dispatcher could not decode: it would drop it, and the client would wait forever."""
    try:
        messages.decode(messages.encode(message))
    except (messages.MalformedMessage, TypeError, ValueError, OverflowError) as error:
        what, _, place = str(error).replace("`", "").partition(" - at $.")
        argument = f"{place}: " if place else ""
        raise PyTritonValidationError(
            f"Invalid request to the daemon ({type(message).__name__}): {argument}{what}."
        ) from None
