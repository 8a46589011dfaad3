"""Serves one function in the foreground. Starts a temporary daemon if none is running, and shows the worker's output.

`pytriton.serve` registers a function of this process; `pytriton-daemon serve` one of a file that may change.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from pytriton._host.log_files import follow
from pytriton._protocol import linux, messages
from pytriton._protocol.files.rundir import RuntimeDir, clients_runtime_dir
from pytriton.exceptions import PyTritonBadParameterError, PyTritonDaemonError, PyTritonError
from pytriton.run_options import RegisterOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.message import Target
    from pytriton.daemon_client import DaemonClient
    from pytriton.run_options import StrPath
    from pytriton.triton.server import DaemonProcess

__all__ = [
    "Console",
    "announce",
    "daemon_at",
    "serve",
    "served_url",
    "served_urls",
    "unregister",
    "wait",
]

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000
#: Grace period of a temporary daemon, in seconds.
_GRACE_S = 5.0
#: Timeout of the check for routes of a frontend, in seconds.
_PROBE_S = 10.0
_NOT_FOUND = 404
#: A line of the frontend (proxy_backend/frontend/http/error_log.h).
_ERROR_RESPONSE = "error response: "
_ERROR_RESPONSE_LINE = re.compile(
    rf"{_ERROR_RESPONSE}(\d+) (\S*) (\S*) ([\d.]+) ms(?: \[request id: (.*)\])?"
)
#: Outcome of a request -> HTTP status, for the outcomes that determine it.
_STATUS = {"ok": "200", "callable": "500", "result": "500"}


def serve(
    infer_fn: Target,
    model_name: str | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    runtime_dir: StrPath | None = None,
    **options: Unpack[RegisterOptions],
) -> None:
    """Serve a function as a web API until Ctrl-C. Print its worker's output, and a line for each request.

    Registers it with the running daemon, or with a temporary one, which is stopped at the end. For a function in a file
    that you are editing, `pytriton-daemon serve app.py:predict` also replaces the model whenever you save.

    Args:
        infer_fn: a function with type hints, or another callable that `register` accepts
        model_name: name of the model; default: the callable's own name
        host: address on which a temporary daemon listens; default: 127.0.0.1
        port: HTTP port of a temporary daemon; 0 chooses a free one; default: 8000
        runtime_dir: runtime directory of the daemon; default: as for `connect`
        options: as for `DaemonClient.register`, such as `route` and `instances`

    Raises:
        PyTritonError: the daemon did not start or has exited, or the function was not registered

    Example:
        >>> def predict(text: str, top_k: int = 3) -> list[str]:
        ...     return text.split()[:top_k]
        >>> pytriton.serve(predict)                                            # doctest: +SKIP
    """
    from pytriton.daemon import connect

    folder = clients_runtime_dir() if runtime_dir is None else Path(runtime_dir).absolute()
    options = {**options, "access_log": True, "ephemeral": True}
    model = None
    with contextlib.suppress(KeyboardInterrupt), daemon_at(RuntimeDir(folder), host, port) as found:
        client = connect(found.path, timeout_s=30.0)
        with Console(found, shows_all=found.path != folder) as console:
            try:
                model = client.register(infer_fn, model_name, progress=False, **options)
                console.follow(model.name, model.info().route)
                announce(model.info(), _say)
                while True:
                    wait(found, 60.0)
            finally:
                if model is not None:
                    unregister(client, model.name)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def daemon_at(
    rundir: RuntimeDir, host: str | None = None, port: int | None = None
) -> Iterator[RuntimeDir]:
    """Yield the runtime directory of a running daemon. If none is running, start a temporary one, and stop it at the end.

    Raises:
        DaemonStartError: the temporary daemon did not start
        PyTritonBadParameterError: a daemon is running, so `host` and `port` cannot be chosen
    """
    if rundir.running_pid() is not None:
        if host is not None or port is not None:
            raise PyTritonBadParameterError(
                f"A daemon is already running (runtime directory {rundir.path}), but host and port apply only to a "
                "temporary daemon: leave them out, or stop the running daemon: pytriton-daemon stop"
            )
        yield rundir
        return
    from pytriton.triton.config import TritonConfig
    from pytriton.triton.security import TritonSecurityConfig
    from pytriton.triton.server import DaemonProcess, new_runtime_dir
    from pytriton.triton.settings import daemon_settings

    config = TritonConfig(
        http_address=DEFAULT_HOST if host is None else host,
        http_port=DEFAULT_PORT if port is None else port,
        allow_grpc=False,
        allow_metrics=False,
    )
    settings = daemon_settings(config, TritonSecurityConfig(), new_runtime_dir())
    settings["grace_period_s"] = _GRACE_S
    process = DaemonProcess(settings, _ignore_exit, quiet=True)
    process.start()
    try:
        process.wait_ready()
        yield RuntimeDir(process.runtime_dir)
    finally:
        process.stop()


def _ignore_exit(process: DaemonProcess, reason: str) -> None:
    """Do nothing: `wait` notices the exit."""


def wait(rundir: RuntimeDir, seconds: float) -> None:
    """Wait for `seconds`, or until the daemon exits.

    Raises:
        PyTritonDaemonError: the daemon has exited
    """
    pid = rundir.running_pid()
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            exited = linux.pidfd_open(pid)
            try:
                if not select.select([exited], [], [], seconds)[0]:
                    return
            finally:
                os.close(exited)
    raise PyTritonDaemonError("The daemon has exited, so this model is no longer served")


def announce(info: messages.ModelInfo, say: Callable[[str], None]) -> None:
    """Print the URL at which a model is served.

    Raises:
        PyTritonDaemonError: the daemon does not serve routes
    """
    server, url = _server_of(info.url), served_url(info.url, info.route)
    if info.route and url == info.url:
        raise PyTritonDaemonError(
            f"{server} is NVIDIA's frontend, which serves only Triton's protocols. Set frontend to native, the default. "
            "Without a C compiler, that needs pytriton-daemon's prebuilt wheel (see pytriton-daemon doctor)"
        )
    say(f"{info.name} is served at {url}")
    if info.route:
        say(f"Try it in a browser: {server}/docs")
    say("Press Ctrl-C to stop")


def served_url(url: str, route: str) -> str:
    """Return the URL to call a model at: that of a typed function's route, if the frontend serves it, or else `url`.

    Without HTTP, `url` is empty, and so is the result.
    """
    return served_urls([(url, route)])[0]


def served_urls(models: Iterable[tuple[str, str]]) -> list[str]:
    """Return the URL to call each model at, like `served_url`. Probe each server only once."""
    has_routes = functools.cache(_has_routes)
    return [
        _server_of(url) + route if url and route and has_routes(_server_of(url)) else url
        for url, route in models
    ]


def _server_of(url: str) -> str:
    return url.partition("/v2/")[0]


def _has_routes(server: str) -> bool:
    """Return False if a server has no routes, True if it has some or if that cannot be determined."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(f"{server}/openapi.json", timeout=_PROBE_S):
            return True
    except HTTPError as error:
        with error:
            return error.code != _NOT_FOUND
    except (OSError, HTTPException):  # e.g. a certificate that only clients of the daemon trust
        return True


def unregister(client: DaemonClient, name: str) -> None:
    """Unregister a model. Do nothing if it is no longer registered, or the daemon has exited."""
    with contextlib.suppress(PyTritonError):
        client.unregister(name)


class Console:
    """Prints a model's output and tracebacks, and a line for each request.

    Args:
        rundir: runtime directory of the daemon
        write: prints a text, in which control characters have been escaped
        shows_all: whether errors of requests to other paths are printed, too
    """

    def __init__(
        self,
        rundir: RuntimeDir,
        write: Callable[[str], None] | None = None,
        *,
        shows_all: bool = False,
    ) -> None:
        self._rundir = rundir
        self._write = write or _print
        self._shows_all = shows_all
        self._follows_all = False
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def follow(self, name: str, route: str) -> None:
        """Print a model's log, from the beginning of its registration."""
        paths = (route, f"/v2/models/{name}/")
        followed: list[tuple[Path, int, Callable[[str], Optional[str]]]] = [
            (self._rundir.log_file(name), sys.maxsize, output_of),
            (
                self._rundir.access_log_file(name),
                sys.maxsize,
                lambda line: request_line(line, route or name, succeeded=bool(route)),
            ),
        ]
        if route and not self._follows_all:
            self._follows_all = self._shows_all
            followed.append(
                (
                    self._rundir.log_file(),
                    0,
                    lambda line: error_line(line, None if self._shows_all else paths),
                )
            )
        for path, lines, text_of in followed:
            thread = threading.Thread(target=self._run, args=(path, lines, text_of), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop printing."""
        self._closed.set()
        for thread in self._threads:
            thread.join(1.0)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, path: Path, lines: int, text_of: Callable[[str], Optional[str]]) -> None:
        with contextlib.suppress(OSError):  # nobody reads the output any more
            for line in follow(path, lines, self._closed):
                text = text_of(line)
                if text is not None:
                    self._write(text)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def error_line(line: str, paths: tuple[str, str] | None) -> str | None:
    """Return an error response from the daemon's log as readable text: time, status, duration, path, and the request's id.

    Args:
        line: a line of the log
        paths: a path, and the beginning of others; None: errors of all requests
    """
    if _ERROR_RESPONSE not in line:
        return None
    try:
        record = json.loads(line)
        found = _ERROR_RESPONSE_LINE.fullmatch(str(record["event"]))
    except (ValueError, KeyError, TypeError):
        return None
    if found is None or record.get("source") != "tritonserver":
        return None
    status, method, path, duration_ms, request_id = found.groups()
    if paths is not None and path != paths[0] and not path.startswith(paths[1]):
        return None
    what = path if method == "POST" else f"{method} {path}"
    text = f"{time.strftime('%H:%M:%S')}  {status}  {float(duration_ms):7.1f} ms  {what}"
    return _visible(text if request_id is None else f"{text}  [request id: {request_id}]")


def request_line(line: str, route: str, *, succeeded: bool = False) -> str | None:
    """Return a readable form of a line of the access log: time, status, duration, route, and the error.

    Args:
        line: of the access log
        route: path of the model
        succeeded: whether to return only requests that succeeded, as the frontend logs the others
    """
    try:
        entry = msgspec.json.decode(line, type=messages.RequestEntry)
    except msgspec.DecodeError:
        return None
    if succeeded and entry.status != "ok":
        return None
    kind, _, code = entry.error.partition(" ")
    status = code or _STATUS.get(entry.status, entry.status)
    when = time.strftime("%H:%M:%S", time.localtime(entry.time))
    text = f"{when}  {status}  {entry.compute_ns / 1e6:7.1f} ms  {route}"
    return text if entry.status == "ok" or code else f"{text}  {kind}  [request id: {entry.id}]"


def output_of(line: str) -> str | None:
    """Return the part of a log record that the model's author needs: output, a traceback or a warning; else None."""
    try:
        record: dict[str, Any] = json.loads(line)
        event = str(record["event"])
    except (ValueError, KeyError, TypeError):
        return _visible(line)
    if record.get("exception"):
        return _visible(str(record["exception"]))
    if record.get("source") == "worker":
        return _visible(event)
    if record.get("level") in ("warning", "error", "critical"):
        why = record.get("reason")
        return _visible(f"{event}: {why}" if why else event)
    return None


def _visible(text: str) -> str:
    """Escape control characters in a text, since they could control the terminal."""
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )
