"""A question on a channel to the dispatcher: how long a client waits for the answer, and what its absence means."""

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
class Question:
    """A message to the dispatcher.

    Args:
        message: the question
        payloads: frames that go with it
        silence_s: the longest silence; None to wait for as long as the daemon lives
        on_progress: is called with every report on the way to the answer
        on_unasked: gets what the dispatcher sends of its own accord meanwhile
    """

    message: messages.AnyMessage
    payloads: Sequence[bytes] = ()
    silence_s: float | None = None
    on_progress: OnProgress | None = None
    on_unasked: control.OnUnasked | None = None


@dataclass(frozen=True)
class Watch:
    """A client's means to see that a silent daemon is alive.

    Args:
        daemon: how an error names it
        look_s: seconds from one look to the next
        is_alive: the look
        no_answer: makes the exception for a question that got no answer, whether the daemon lives or not
    """

    daemon: str
    look_s: float
    is_alive: Callable[[], bool]
    no_answer: Callable[[control.ControlTimeout], PyTritonDaemonError]


def ask(channel: control.ControlClient, question: Question, watch: Watch) -> messages.AnyMessage:
    """Return the answer to a question.

    Raises:
        PyTritonValidationError: a value in the question is of a wrong type; nothing was sent
        RemoteFailure: the dispatcher answered with a failure; see `exception_of`
        DaemonNotRunningError: the daemon ended before it answered, or was silent too long
        PyTritonDaemonError: it refuses this client, or is of another version
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
            f"{watch.daemon} gave an answer that this version of pytriton-daemon does not understand ({error}). "
            "Install the same version on both sides, then `pytriton-daemon restart` there."
        ) from error


def _check_types(message: messages.AnyMessage) -> None:
    """Refuse a message that the dispatcher could not read: it would drop it, and the client wait for ever."""
    try:
        messages.decode(messages.encode(message))
    except (messages.MalformedMessage, TypeError, ValueError, OverflowError) as error:
        what, _, place = str(error).replace("`", "").partition(" - at $.")
        argument = f"{place}: " if place else ""
        raise PyTritonValidationError(
            f"The daemon cannot be asked ({type(message).__name__}): {argument}{what}."
        ) from None
