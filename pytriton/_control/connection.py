"""Requests to the dispatcher: each returns the answer, or raises one of our exceptions.

Each request opens its own socket and closes it after the answer (0.3 ms, measured). A client can therefore be
used by many threads and after a fork, holds no resources, and never sends a message to a later daemon.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import ENV_RUNTIME_DIR, RuntimeDir
from pytriton.exceptions import (
    DaemonNotRunningError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonDaemonError,
    PyTritonValidationError,
    RegistrationError,
)

if TYPE_CHECKING:
    from pytriton._protocol import control


#: Interval between checks of the daemon's lock file while waiting for an answer.
_POLL_INTERVAL_S = 0.5

#: Maximum number of attempts. A connection that breaks more often is not explained by an upgrade.
_MAX_ATTEMPTS = 4

MessageT = TypeVar("MessageT", bound=messages.Message)


class Connection:
    """A client's connection to the daemon of one runtime directory; it holds no resources."""

    def __init__(self, rundir: RuntimeDir) -> None:
        self.rundir = rundir
        self.name = str(rundir.path)
        self.endpoint = rundir.control_endpoint

    def daemon_pid(self) -> int:
        """Return the daemon's process id.

        Raises:
            DaemonNotRunningError: none runs; the text names this directory and others where one runs
        """
        try:
            pid = self.rundir.running_pid()
        except OSError as error:
            raise DaemonNotRunningError(
                f"Cannot check whether a daemon runs in {self.rundir.path}: {error}. A runtime "
                "directory belongs to the user who started the daemon; name another one with "
                f"runtime_dir= or ${ENV_RUNTIME_DIR}."
            ) from error
        if pid is None:
            raise DaemonNotRunningError(_not_running(self.rundir))
        return pid

    def access_token(self) -> str | None:
        """Return the daemon's access token; see `DaemonClient.access_token`."""
        self.daemon_pid()  # the token of a killed daemon is useless
        try:
            return self.rundir.access_token()
        except OSError as error:
            raise PyTritonDaemonError(
                f"Cannot read the access token {self.rundir.access_token_file}: {error.strerror}. "
                "Only the user who runs the daemon may; ask that user for it, or for the setting "
                "access_token to be set to a token that you know."
            ) from error

    def ask(self, question: ControlRequest) -> messages.AnyMessage:
        """Return the answer to a request; raise as `request.ask` does, and if no daemon runs."""
        from pytriton._protocol import control  # the first use of ZeroMQ

        pid = self.daemon_pid()
        for left in reversed(range(_MAX_ATTEMPTS)):
            with control.ControlClient(self.endpoint, watched=True) as channel:
                try:
                    return self.ask_on(channel, pid, question)
                except DaemonNotRunningError:
                    # During an upgrade, the daemon only finishes earlier requests and drops new ones: retry.
                    if not left or not channel.broken or not self._runs(pid):
                        raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def ask_on(
        self, channel: control.ControlClient, pid: int, question: ControlRequest
    ) -> messages.AnyMessage:
        """Return the answer on a channel that is open to the daemon with this pid; raise as `request.ask` does."""

        def no_answer(silence: control.ControlTimeout) -> DaemonNotRunningError:
            if not self._runs(pid):
                return DaemonNotRunningError(_went_away(self.rundir, pid, question.message))
            if channel.broken:
                return DaemonNotRunningError(_hung_up(self.rundir, pid, question.message))
            return DaemonNotRunningError(_silent(self.rundir, pid, question.silence_s))

        def is_alive() -> bool:
            return self._runs(pid) and not channel.broken

        watch = LivenessCheck("The daemon", _POLL_INTERVAL_S, is_alive, no_answer)
        return ask(channel, question, watch)

    def _runs(self, pid: int) -> bool:
        try:
            return self.rundir.running_pid() == pid
        except OSError:  # its directory was deleted
            return False


def expected(
    answer: messages.AnyMessage, answer_type: type[MessageT], message: messages.AnyMessage
) -> MessageT:
    """Return the answer to a message if it has the expected type.

    Raises:
        PyTritonDaemonError: it has another type
    """
    if not isinstance(answer, answer_type):
        raise PyTritonDaemonError(
            f"The daemon answered {type(message).__name__} with {type(answer).__name__}: it is "
            "another version. Install the same version on both sides, then run "
            "`pytriton-daemon restart`."
        )
    return answer


def exception_of(
    failure: RemoteFailure, *, model_name: str | None = None, registering: bool = False
) -> PyTritonDaemonError:
    """Return our exception for a failure in the dispatcher or a worker."""
    if failure.kind is ErrorKind.NOT_FOUND:
        return ModelNotFoundError(failure.text, model_name=model_name)
    if failure.kind is ErrorKind.EXISTS:
        kind: type[RegistrationError] = ModelExistsError
    elif registering:
        kind = RegistrationError
    else:
        trace = f"\n\nRemote traceback:\n{failure.traceback.rstrip()}" if failure.traceback else ""
        return PyTritonDaemonError(failure.text + trace)
    return kind(failure.text, model_name=model_name, remote_traceback=failure.traceback)


def _not_running(rundir: RuntimeDir) -> str:
    text = (
        f"No daemon runs in the runtime directory {rundir.path}. Start one with `pytriton-daemon "
        "start --detach`, or name another daemon's directory with connect(runtime_dir=...) or "
        f"${ENV_RUNTIME_DIR}."
    )
    others = running_elsewhere(rundir)
    if others:
        text += f" Daemons run in: {', '.join(map(str, others))}."
    return text


def running_elsewhere(rundir: RuntimeDir) -> list[Path]:
    """Return the other default runtime directories in which a daemon runs."""
    usual = [
        Path("/run/pytriton-daemon"),
        Path(tempfile.gettempdir()) / f"pytriton-daemon-{os.geteuid()}",
    ]
    if os.environ.get("XDG_RUNTIME_DIR"):
        usual.insert(0, Path(os.environ["XDG_RUNTIME_DIR"]) / "pytriton-daemon")
    return [path for path in usual if path != rundir.path and _runs_in(path)]


def _runs_in(path: Path) -> bool:
    try:
        return RuntimeDir(path).running_pid() is not None
    except OSError:  # not accessible to this user
        return False


def _went_away(rundir: RuntimeDir, pid: int, message: messages.AnyMessage) -> str:
    return (
        f"The daemon (pid {pid}) in {rundir.path} exited before it answered "
        f"{type(message).__name__}. Its last messages are in {rundir.log_file()}; start it again "
        "with `pytriton-daemon start --detach`."
    )


def _hung_up(rundir: RuntimeDir, pid: int, message: messages.AnyMessage) -> str:
    return (
        f"The daemon (pid {pid}) in {rundir.path} repeatedly closed the connection before it answered "
        f"{type(message).__name__}. Its last messages are in {rundir.log_file()}."
    )


def _silent(rundir: RuntimeDir, pid: int, silence_s: float | None) -> str:
    return (
        f"The daemon (pid {pid}) in {rundir.path} runs, but did not answer within {silence_s:g} s. "
        f"It may be starting or stopping: see {rundir.log_file()}, or allow more time with "
        "connect(timeout_s=...)."
    )


# ── A request on a channel to the dispatcher: how long a client waits for the answer, and the error if none comes ──

OnProgress = Callable[[messages.Progress], None]


@dataclass(frozen=True)
class ControlRequest:
    """A message to the dispatcher.

    Args:
        message: the request
        payloads: frames that are sent with it
        silence_s: maximum silence in seconds; None waits for as long as the daemon lives
        on_progress: called with every progress report before the answer
        on_unsolicited: called with messages that the dispatcher sends unprompted
    """

    message: messages.AnyMessage
    payloads: Sequence[bytes] = ()
    silence_s: float | None = None
    on_progress: OnProgress | None = None
    on_unsolicited: control.OnUnsolicited | None = None


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
            on_unsolicited=question.on_unsolicited,
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
