"""Connections to a daemon, on this machine or over TCP: requests, their progress, and their answers or exceptions.

Each request opens a socket of its own and closes it after the answer, which takes 0.3 ms. A client can therefore be
used by several threads and after a fork, and holds no resources between requests.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
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
    PyTritonBadParameterError,
    PyTritonDaemonError,
    PyTritonValidationError,
    RegistrationError,
)

if TYPE_CHECKING:
    from pytriton._protocol import control


#: Interval between checks of the daemon's lock file while waiting for an answer, in seconds.
_POLL_INTERVAL_S = 0.5
#: Interval between checks of a TCP connection while waiting for an answer, in seconds.
_REMOTE_POLL_INTERVAL_S = 0.1

#: Maximum number of attempts if the connection breaks. An upgrade of the daemon cannot break it more often.
_MAX_ATTEMPTS = 4

MessageT = TypeVar("MessageT", bound=messages.Message)

#: Called with the progress reports of a request.
Report = Callable[[messages.Progress], None]


@dataclass(frozen=True)
class ControlRequest:
    """A request to the dispatcher.

    Args:
        message: the message to send
        payloads: frames to send with the message
        silence_s: timeout in seconds, restarted by every progress report; None waits as long as the daemon lives
        on_progress: called with every progress report
        on_unsolicited: called with messages of the dispatcher that answer no request
    """

    message: messages.AnyMessage
    payloads: Sequence[bytes] = ()
    silence_s: float | None = None
    on_progress: Report | None = None
    on_unsolicited: control.OnUnsolicited | None = None


@dataclass(frozen=True)
class LivenessCheck:
    """Liveness check for a daemon that has not answered yet.

    Args:
        daemon: name of the daemon in error texts
        interval_s: interval between checks, in seconds
        is_alive: returns whether the daemon is alive
        no_answer: returns the exception to raise when a request got no answer, whether the daemon is alive or not
    """

    daemon: str
    interval_s: float
    is_alive: Callable[[], bool]
    no_answer: Callable[[control.ControlTimeout], PyTritonDaemonError]


class Connection:
    """A client's connection to the daemon in a runtime directory; it holds no resources between requests."""

    def __init__(self, rundir: RuntimeDir) -> None:
        self.rundir = rundir
        self.name = str(rundir.path)
        self.endpoint = rundir.control_endpoint

    def daemon_pid(self) -> int:
        """Return the daemon's process id.

        Raises:
            DaemonNotRunningError: no daemon is running; the text names this directory, and other ones in which one is
        """
        try:
            pid = self.rundir.running_pid()
        except OSError as error:
            raise DaemonNotRunningError(
                f"Cannot check whether a daemon is running in {self.rundir.path}: {error}. A runtime "
                "directory belongs to the user who started the daemon; name another one with "
                f"runtime_dir= or ${ENV_RUNTIME_DIR}."
            ) from error
        if pid is None:
            raise DaemonNotRunningError(_not_running(self.rundir))
        return pid

    def access_token(self) -> str | None:
        """Return the daemon's access token; see `DaemonClient.access_token`."""
        self.daemon_pid()  # raises if no daemon is running: the token of a killed daemon is useless
        try:
            return self.rundir.access_token()
        except OSError as error:
            raise PyTritonDaemonError(
                f"Cannot read the access token {self.rundir.access_token_file}: {error.strerror}. "
                "Only the user who runs the daemon may read it. Ask that user for the token, or ask them to "
                "set access_token to a token that you know."
            ) from error

    def ask(self, request: ControlRequest) -> messages.AnyMessage:
        """Send a request and return the answer. Retry if an upgrade of the daemon breaks the connection.

        Raises:
            DaemonNotRunningError: no daemon is running
            RemoteFailure, PyTritonError: as the function `ask`
        """
        from pytriton._protocol import control  # the first use of ZeroMQ

        pid = self.daemon_pid()
        for left in reversed(range(_MAX_ATTEMPTS)):
            with closing(control.ControlClient(self.endpoint, watched=True)) as channel:
                try:
                    return self.ask_on(channel, pid, request)
                except DaemonNotRunningError:
                    # An upgrading daemon finishes earlier requests and drops new ones: retry.
                    if not left or not channel.broken or not self._runs(pid):
                        raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def ask_on(
        self, channel: control.ControlClient, pid: int, request: ControlRequest
    ) -> messages.AnyMessage:
        """Send a request over an open channel and return the answer. Raises the same exceptions as the function `ask`.

        Args:
            channel: the channel to the daemon
            pid: process id of the daemon, to check whether it is alive
            request: the request
        """

        def no_answer(silence: control.ControlTimeout) -> DaemonNotRunningError:
            if not self._runs(pid):
                return DaemonNotRunningError(_exited(self.rundir, pid, request.message))
            if channel.broken:
                return DaemonNotRunningError(_disconnected(self.rundir, pid, request.message))
            return DaemonNotRunningError(_unresponsive(self.rundir, pid, request.silence_s))

        def is_alive() -> bool:
            return self._runs(pid) and not channel.broken

        liveness = LivenessCheck("The daemon", _POLL_INTERVAL_S, is_alive, no_answer)
        return ask(channel, request, liveness)

    def _runs(self, pid: int) -> bool:
        try:
            return self.rundir.running_pid() == pid
        except OSError:  # its directory was deleted
            return False


class RemoteConnection:
    """A client's connection to a daemon over TCP (CurveZMQ); it holds no resources between requests.

    There is no lock file to check whether the daemon is alive. Instead, ZeroMQ's heartbeats detect a broken connection,
    and its request fails.

    Args:
        endpoint: tcp://HOST:PORT
        key_file: the file written by `pytriton-daemon keys add`
        timeout_s: timeout of the handshake, in seconds

    Raises:
        PyTritonDaemonError: the key file is missing or invalid
    """

    def __init__(self, endpoint: str, key_file: str | Path | None, timeout_s: float) -> None:
        self.name = endpoint
        self._timeout_s = timeout_s
        self._keys = _read_keys(endpoint, key_file)

    def access_token(self) -> str | None:
        """Raise PyTritonDaemonError: the access token never leaves the daemon's machine."""
        raise PyTritonDaemonError(
            f"The access token of the daemon at {self.name} is in the daemon's runtime directory, on the machine where the daemon runs. "
            "Print it there with `pytriton-daemon access-token`, or set the daemon's setting access_token to a token that "
            "you know."
        )

    def ask(self, request: ControlRequest) -> messages.AnyMessage:
        """Send a request and return the answer. Raises the same exceptions as the function `ask`."""
        from pytriton._protocol import control  # the first use of ZeroMQ

        begun = time.monotonic()
        with closing(control.ControlClient(self.name, self._keys)) as channel:

            def is_alive() -> bool:
                channel.watch()
                late = not channel.agreed and time.monotonic() - begun > self._timeout_s
                return channel.trouble is None and not late

            liveness = LivenessCheck(
                f"The daemon at {self.name}",
                _REMOTE_POLL_INTERVAL_S,
                is_alive,
                lambda silence: self._failed(channel, silence),
            )
            return ask(channel, request, liveness)

    def _failed(self, channel: control.ControlClient, silence: Exception) -> PyTritonDaemonError:
        channel.watch()
        if not channel.agreed and channel.trouble is not None:
            return PyTritonDaemonError(
                f"The daemon at {self.name} refuses this client: {channel.trouble}. Ask its administrator for a key "
                "file (`pytriton-daemon keys add NAME`), and pass it with connect(..., key_file=...)."
            )
        if not channel.agreed:
            return DaemonNotRunningError(
                f"No daemon answers at {self.name} within {self._timeout_s:g} s. On that machine, check with `pytriton-daemon "
                "status` where the daemon listens (control_tcp), and whether a firewall blocks the connection."
            )
        return DaemonNotRunningError(
            f"The daemon at {self.name} did not answer: {channel.trouble or silence}. On that machine, check whether it "
            "is running (`pytriton-daemon status`, `pytriton-daemon logs`)."
        )


def ask(
    channel: control.ControlClient, request: ControlRequest, liveness: LivenessCheck
) -> messages.AnyMessage:
    """Send a request over an open channel and return the answer.

    Raises:
        PyTritonValidationError: a value in the request has the wrong type; nothing was sent
        RemoteFailure: the dispatcher answered with a failure; see `exception_of`
        DaemonNotRunningError: the daemon exited before it answered, or was silent for too long
        PyTritonDaemonError: the daemon refuses this client, or has another version
    """
    from pytriton._protocol.control import ControlTimeout

    _check_types(request.message)
    try:
        return channel.ask(
            request.message,
            request.payloads,
            timeout_s=request.silence_s,
            on_progress=request.on_progress,
            life_sign_s=liveness.interval_s,
            is_alive=liveness.is_alive,
            on_unsolicited=request.on_unsolicited,
        )
    except ControlTimeout as silence:
        raise liveness.no_answer(silence) from None
    except messages.MalformedMessage as error:
        raise PyTritonDaemonError(
            f"{liveness.daemon} sent an answer that this version of pytriton-daemon does not understand ({error}). "
            "Install the same version on both sides, then restart the daemon with `pytriton-daemon restart`."
        ) from error


def _check_types(message: messages.AnyMessage) -> None:
    """Raise if the dispatcher would be unable to decode a message. It would drop the message, and the client would
    wait forever.
    """
    try:
        messages.decode(messages.encode(message))
    except (messages.MalformedMessage, TypeError, ValueError, OverflowError) as error:
        what, _, place = str(error).replace("`", "").partition(" - at $.")
        argument = f"{place}: " if place else ""
        raise PyTritonValidationError(
            f"Invalid request to the daemon ({type(message).__name__}): {argument}{what}."
        ) from None


def expected(
    answer: messages.AnyMessage, answer_type: type[MessageT], message: messages.AnyMessage
) -> MessageT:
    """Return an answer unchanged if it has the expected type.

    Raises:
        PyTritonDaemonError: the answer has another type, because the daemon has another version
    """
    if not isinstance(answer, answer_type):
        raise PyTritonDaemonError(
            f"The daemon answered {type(message).__name__} with {type(answer).__name__}: it runs "
            "a different version. Install the same version on both sides, then run "
            "`pytriton-daemon restart`."
        )
    return answer


def exception_of(
    failure: RemoteFailure, *, model_name: str | None = None, registering: bool = False
) -> PyTritonDaemonError:
    """Return the public exception for a failure reported by the dispatcher.

    Args:
        failure: the failure
        model_name: the model concerned, if any
        registering: whether to return a RegistrationError, because the request registers or changes a model
    """
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


# ── progress ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def reporter(progress: bool | Report | None, model_name: str) -> Iterator[Report | None]:
    """Yield the function to call with progress reports, or None if they are not shown.

    Args:
        progress: a callable, which is called with each report; True shows a progress bar, False does not, None shows it
            if standard error is a terminal
        model_name: the name to show

    Raises:
        PyTritonBadParameterError: `progress` has another type
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not (sys.stderr and sys.stderr.isatty())):
        yield None
    elif progress is None or progress is True:
        with _bar(model_name) as report:
            yield report
    else:
        raise PyTritonBadParameterError(
            f"progress={progress!r}: pass None, True, False or a callable that accepts a progress report"
        )


def step_reporter(report: Report | None) -> Callable[[str], None]:
    """Return a function that reports steps before the request is sent, such as the creation of an environment."""

    def say(text: str) -> None:
        if report is not None:
            report(messages.Progress("environment", text))

    return say


@contextmanager
def _bar(model_name: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[model]}: {task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending the callable", total=None, model=model_name)

        def report(event: messages.Progress) -> None:
            bar.update(
                task, description=event.text, completed=event.done, total=event.total or None
            )

        yield report


# ── errors when no daemon answers ──────────────────────────────────────────────────────────────


def _not_running(rundir: RuntimeDir) -> str:
    text = (
        f"No daemon is running in the runtime directory {rundir.path}. Start one with `pytriton-daemon "
        "start --detach`, or name another daemon's directory with connect(runtime_dir=...) or "
        f"${ENV_RUNTIME_DIR}."
    )
    others = running_elsewhere(rundir)
    if others:
        text += f" Daemons run in: {', '.join(map(str, others))}."
    return text


def running_elsewhere(rundir: RuntimeDir) -> list[Path]:
    """Return the default runtime directories, other than this one, in which a daemon runs."""
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


def _exited(rundir: RuntimeDir, pid: int, message: messages.AnyMessage) -> str:
    return (
        f"The daemon (pid {pid}) in {rundir.path} exited before it answered "
        f"{type(message).__name__}. Its last messages are in {rundir.log_file()}; start it again "
        "with `pytriton-daemon start --detach`."
    )


def _disconnected(rundir: RuntimeDir, pid: int, message: messages.AnyMessage) -> str:
    return (
        f"The daemon (pid {pid}) in {rundir.path} repeatedly closed the connection before it answered "
        f"{type(message).__name__}. Its last messages are in {rundir.log_file()}."
    )


def _unresponsive(rundir: RuntimeDir, pid: int, silence_s: float | None) -> str:
    return (
        f"The daemon (pid {pid}) in {rundir.path} runs, but did not answer within {silence_s:g} s. "
        f"It may be starting or stopping: see {rundir.log_file()}, or allow more time with "
        "connect(timeout_s=...)."
    )


def _read_keys(endpoint: str, key_file: str | Path | None) -> control.CurveKeys:
    from pytriton._protocol.control import CurveKeys

    if key_file is None:
        raise PyTritonDaemonError(
            f"{endpoint} accepts only clients with a key: connect({endpoint!r}, key_file=...). The daemon's "
            "administrator creates the file with `pytriton-daemon keys add NAME`."
        )
    path = Path(key_file).expanduser()
    try:
        return CurveKeys.read(str(path))
    except (OSError, ValueError) as error:
        raise PyTritonDaemonError(f"The key file {path} cannot be used: {error}.") from error
