"""The command line's connection to the daemon: finds it, sends requests, and waits for its exit."""

from __future__ import annotations

import os
import select
import signal
from contextlib import closing
from pathlib import Path

from pytriton._cli.errors import CliError
from pytriton._cli.output import say
from pytriton._protocol import control, linux, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import ENV_RUNTIME_DIR, RuntimeDir

#: Maximum silence of a healthy daemon, in seconds.
ANSWER_S = 10.0
#: Interval between liveness checks of a silent daemon.
_LIVENESS_INTERVAL_S = 1.0
#: Maximum number of attempts. An upgrade does not break connections more often.
_MAX_ATTEMPTS = 4

#: Temporary failures must not have the code NO_DAEMON, on which scripts start a daemon.
_CODES = {ErrorKind.INTERNAL: ExitCode.ERROR}


def runtime_dir(flag: Path | None) -> RuntimeDir:
    """Return the runtime directory that `start` would use with the same flag and environment."""
    from pytriton._host.settings.declarations import ConfigError
    from pytriton._host.settings.sources import find_runtime_dir

    try:
        return RuntimeDir(find_runtime_dir(flag, os.environ, Path.cwd()))
    except ConfigError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def is_service(pid: int) -> bool:
    """Return True if systemd runs a process as the service of `pytriton-daemon service install`."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(line.endswith("/pytriton-daemon.service") for line in groups.splitlines())


def no_daemon(rundir: RuntimeDir) -> CliError:
    """Return the error for a directory without a running daemon. It says how the last one exited, and what to do."""
    return CliError(
        ExitCode.NO_DAEMON,
        f"no daemon is running in the runtime directory {rundir.path}.\n{_last(rundir)}"
        "Start one with `pytriton-daemon start --detach`, or name another daemon's directory with "
        f"--runtime-dir or {ENV_RUNTIME_DIR}.",
    )


def running_pid(rundir: RuntimeDir) -> int | None:
    """Return the pid of the daemon that is running in a directory; None if there is none.

    Raises:
        CliError: the path is not a directory, or it belongs to another user.
    """
    try:
        return rundir.running_pid()
    except OSError as error:
        raise CliError(
            ExitCode.USAGE,
            f"cannot check whether a daemon is running in the runtime directory {rundir.path}: {error.strerror}. It must "
            "belong to the user who started the daemon; set it with --runtime-dir or "
            f"{ENV_RUNTIME_DIR}.",
        ) from None


def describe_last_exit(rundir: RuntimeDir) -> str:
    """Return how the last daemon in a directory exited; "" if that is unknown."""
    from pytriton._host import exit_record

    killed = exit_record.killed_pid(rundir)
    if killed is not None:
        return f"pid {killed} was killed before it could record a reason"
    end = exit_record.read(rundir)
    return "" if end is None else end.describe()


def _last(rundir: RuntimeDir) -> str:
    end = describe_last_exit(rundir)
    return f"The last one exited: {end}\n" if end else ""


def ask(
    rundir: RuntimeDir,
    message: messages.AnyMessage,
    *,
    timeout_s: float | None = ANSWER_S,
) -> messages.AnyMessage:
    """Send a message and return the daemon's answer. `timeout_s` limits the daemon's silence; None means no limit.

    Raises:
        CliError: no daemon is running, it does not answer, or it answers with a failure.
    """
    pid = running_pid(rundir)
    if pid is None:
        raise no_daemon(rundir)
    try:
        return _ask(rundir, pid, message, timeout_s)
    except control.ControlTimeout as silence:
        raise CliError(
            ExitCode.NO_DAEMON,
            f"the daemon (pid {pid}) in {rundir.path}: {silence}. It may still be starting or "
            "already stopping: see `pytriton-daemon logs`.",
        ) from None
    except messages.MalformedMessage as error:
        raise CliError(
            ExitCode.ERROR,
            f"the daemon (pid {pid}) in {rundir.path} and this command have different versions: "
            f"{error}. Restart the daemon with `pytriton-daemon restart`.",
        ) from None
    except RemoteFailure as failure:
        trace = f"\n{failure.traceback}" if failure.traceback else ""
        code = _CODES.get(failure.kind, ExitCode.REGISTRATION_FAILED)
        raise CliError(code, f"{failure.text}{trace}") from None


def _ask(
    rundir: RuntimeDir, pid: int, message: messages.AnyMessage, timeout_s: float | None
) -> messages.AnyMessage:
    """Send a request, and send it again if the daemon is upgraded before it answers."""
    for left in reversed(range(_MAX_ATTEMPTS)):
        with closing(control.ControlClient(rundir.control_endpoint, watched=True)) as client:

            def is_alive(client: control.ControlClient = client) -> bool:
                return rundir.running_pid() == pid and not client.broken

            try:
                return client.ask(
                    message,
                    timeout_s=timeout_s,
                    life_sign_s=_LIVENESS_INTERVAL_S,
                    is_alive=is_alive,
                )
            except control.ControlTimeout:
                if not left or not client.broken or rundir.running_pid() != pid:
                    raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def ask_status(rundir: RuntimeDir, timeout_s: float = ANSWER_S) -> messages.Status:
    """Return the status of the daemon. Raises the same exceptions as `ask`."""
    status = ask(rundir, messages.GetStatus(), timeout_s=timeout_s)
    assert isinstance(status, messages.Status)  # the answer to GetStatus, see _protocol/messages/
    return status


def ask_models(rundir: RuntimeDir) -> list[messages.ModelInfo]:
    """Return the models of the daemon. Raises the same exceptions as `ask`."""
    models = ask(rundir, messages.ListModels())
    assert isinstance(models, messages.Models)  # the answer to ListModels, see _protocol/messages/
    return models.models


def access_token(rundir: RuntimeDir) -> str:
    """Return the daemon's access token; "" if it has none.

    Raises:
        CliError: no daemon is running, or the token belongs to another user.
    """
    try:
        if rundir.running_pid() is None:
            raise no_daemon(rundir)
        token = rundir.access_token()
    except OSError as error:
        raise CliError(
            ExitCode.USAGE,
            f"cannot read the access token in {rundir.path}: {error.strerror}. Only the user who "
            "runs the daemon may read it.",
        ) from None
    if token is None:
        say("this daemon has no access token: restricted_endpoints is empty")
    return token or ""


def reload(rundir: RuntimeDir) -> messages.Reloaded:
    """Reload the daemon's settings. Raises the same exceptions as `ask`, and CliError for invalid settings."""
    answer = ask(rundir, messages.Reload())
    assert isinstance(answer, messages.Reloaded)  # the answer to Reload, see _protocol/messages/
    if answer.problem:
        raise CliError(
            ExitCode.USAGE,
            f"the settings are invalid, so the old ones remain in effect:\n{answer.problem}",
        )
    return answer


def replace_server(rundir: RuntimeDir, *, force: bool = False) -> messages.ServerReplaced:
    """Replace the running tritonserver, and wait until the new one has loaded all models. Raises the same exceptions
    as `ask`.
    """
    answer = ask(rundir, messages.ReplaceServer(force), timeout_s=None)
    # The answer to ReplaceServer, see _protocol/messages/.
    assert isinstance(answer, messages.ServerReplaced)
    return answer


def upgrade(rundir: RuntimeDir, request: messages.Upgrade) -> messages.Event:
    """Upgrade the daemon to the installed version, and return the event that reports the upgrade.

    Raises:
        CliError: no daemon is running, or the upgrade failed; the text says why.
    """
    from pytriton._control.upgrade import NotUpgraded
    from pytriton._control.upgrade import upgrade as upgraded

    def is_gone(error: Exception) -> bool:
        return isinstance(error, CliError) and error.code is ExitCode.NO_DAEMON

    try:
        return upgraded(lambda message: ask(rundir, message, timeout_s=None), request, is_gone)
    except NotUpgraded as error:
        raise CliError(ExitCode.ERROR, str(error)) from None


def stop(
    rundir: RuntimeDir,
    timeout_s: float | None,
    request: messages.AnyMessage = messages.Shutdown(),  # noqa: B008, it is frozen
) -> int:
    """Stop the daemon gracefully, wait until its process has exited, and return its pid.

    Raises:
        CliError: no daemon is running, or it has not exited within `timeout_s`.
    """
    pid = running_pid(rundir)
    if pid is None:
        raise no_daemon(rundir)
    try:
        ended = linux.pidfd_open(pid)
    except ProcessLookupError:  # it has just exited
        return pid
    try:
        if rundir.running_pid() != pid:
            return pid  # it has exited, and the pid may have been reused
        _ask_to_stop(rundir, pid, request)
        readable, _, _ = select.select([ended], [], [], timeout_s)
    finally:
        os.close(ended)
    if not readable:
        assert timeout_s is not None  # select() without a timeout returns only on exit
        raise CliError(
            ExitCode.ERROR,
            f"the daemon (pid {pid}) is still stopping after {timeout_s:g} s: it is waiting for in-flight "
            "batches. Wait longer with --timeout, or stop it immediately, without finishing them, with "
            f"`kill -INT {pid}`.",
        )
    return pid


def drain(rundir: RuntimeDir, request: messages.Drain) -> int | None:
    """Drain the daemon. If the request stops the daemon, wait until it has exited and return its pid, else None.

    Raises:
        CliError: no daemon is running.
    """
    if request.stop:
        return stop(rundir, None, request)
    ask(rundir, request, timeout_s=None)
    return None


def _ask_to_stop(rundir: RuntimeDir, pid: int, request: messages.AnyMessage) -> None:
    try:
        ask(rundir, request, timeout_s=ANSWER_S)
    except CliError as error:
        if error.code is not ExitCode.NO_DAEMON:
            raise
        if rundir.running_pid() == pid:  # it does not answer, but its event loop handles signals
            os.kill(pid, signal.SIGTERM)
