"""`pytriton-daemon serve app.py:predict`: a function as a web API, until Ctrl-C; `call`: one request to it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command, errors_of_clients
from pytriton._cli.flags import RuntimeDirFlag
from pytriton._cli.output import say, visible
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

if TYPE_CHECKING:
    from pytriton.triton.server import DaemonProcess

#: Time to collect changes of files that one save makes, in milliseconds.
_DEBOUNCE_MS = 50
#: Grace period of a temporary daemon, in seconds.
_GRACE_S = 5.0


@command
def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION|TOOL:MODEL",
            help="The function to serve; MODULE:FUNCTION works as well. Or another tool's model: mlflow:PATH, "
            "hf:TASK=PATH, sentence-transformers:PATH, torchserve:FILE.mar, litserve:FILE.py:API.",
        ),
    ],
    name: Annotated[
        Optional[str], typer.Option(help="Model name, instead of the function's own.")
    ] = None,
    route: Annotated[
        Optional[str], typer.Option(help="Path of its URL. Default: / and the model's name.")
    ] = None,
    instances: Annotated[
        Optional[str],
        typer.Option(help="Number of workers. 1:8 scales from 1 to 8 with the load."),
    ] = None,
    python: Annotated[
        Optional[str],
        typer.Option(help="Interpreter of the workers, or an environment's directory or archive."),
    ] = None,
    requirement: Annotated[
        Optional[list[str]],
        typer.Option(
            help="With TOOL:MODEL: a package for the workers' environment. May be repeated."
        ),
    ] = None,
    factory: Annotated[
        bool, typer.Option("--factory", help="Call the target in each worker to get the function.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on, if no daemon is running.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port, if no daemon is running.")] = 8000,
    reload: Annotated[
        Optional[bool],
        typer.Option(
            "--reload/--no-reload",
            help="Replace the model when its files change. Default: on a terminal.",
        ),
    ] = None,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Serve a typed function, or another tool's model, as a web API until Ctrl-C. Starts a temporary daemon if none is running."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.register_target import wanted_instances
    from pytriton.formats.table import tool_of

    if requirement and tool_of(target) is None:
        raise typer.BadParameter("--requirement needs another tool's model, such as mlflow:PATH")
    options: dict[str, Any] = {
        "model_name": name,
        "route": route,
        "instances": None if instances is None else wanted_instances(instances),
        "factory": factory or None,
        "python": python,
        "requirements": requirement or None,
        "access_log": True,
        "replace": True,
    }
    given = {key: value for key, value in options.items() if value is not None}
    watches = sys.stdout.isatty() if reload is None else reload
    with _daemon(daemon_connection.runtime_dir(runtime_dir), host, port) as rundir:
        ServedTarget(target, rundir, given).run(watches=watches)


@contextlib.contextmanager
def _daemon(rundir: RuntimeDir, host: str, port: int) -> Iterator[RuntimeDir]:
    """Yield the running daemon's directory, or that of a temporary daemon, which is stopped at the end.

    Raises:
        CliError: the daemon does not start
    """
    if rundir.running_pid() is not None:
        yield rundir
        return
    from pytriton.triton.config import TritonConfig
    from pytriton.triton.security import TritonSecurityConfig
    from pytriton.triton.server import DaemonProcess, new_runtime_dir
    from pytriton.triton.settings import daemon_settings

    config = TritonConfig(http_address=host, http_port=port, grpc_port=0, metrics_port=0)
    with errors_of_clients():
        settings = daemon_settings(config, TritonSecurityConfig(), new_runtime_dir())
        settings["grace_period_s"] = _GRACE_S
        process = DaemonProcess(settings, _exited, quiet=True)
        process.start()
        try:
            process.wait_ready()
            yield RuntimeDir(process.runtime_dir)
        finally:
            process.stop()


def _exited(_: DaemonProcess, reason: str) -> None:
    say(f"pytriton-daemon: the daemon exited: {reason}")


class ServedTarget:
    """A function that is registered by a process of its own each time, so that changed modules are imported afresh.

    Args:
        target: FILE.py:FUNCTION or MODULE:FUNCTION
        rundir: the daemon
        options: keyword arguments of `DaemonClient.register`
    """

    def __init__(self, target: str, rundir: RuntimeDir, options: dict[str, Any]) -> None:
        self._target = target
        self._rundir = rundir
        self._options = options
        self._served: dict[str, Any] = {}
        self._ended = threading.Event()

    def run(self, *, watches: bool) -> None:
        """Register the function, and serve it until interrupted.

        Raises:
            CliError: it cannot be registered
        """
        self._register()
        say(f"{self._served['name']} is served at {self._served['route_url']}")
        say(f"Try it in a browser: {self._served['docs_url']}")
        say("Press Ctrl-C to stop")
        try:
            self._print_in_background()
            if watches:
                self._replace_on_changes()
            else:
                self._ended.wait()
        except KeyboardInterrupt:
            say("")
        finally:
            self._ended.set()
            self._unregister()

    def _register(self) -> None:
        from pytriton._register import environments, target
        from pytriton._register.environment import find_interpreter, own_interpreter
        from pytriton.formats.table import tool_of

        options = {**self._options}
        python, packages = own_interpreter(), None
        with errors_of_clients():
            if "python" in options and tool_of(self._target) is None:
                python = find_interpreter(options.pop("python"))
                packages = environments.worker_packages(python, lambda text: say(f"  {text}"))
            request = target.RegisterRequest(self._target, str(self._rundir.path), options)
            for answer in target.register_elsewhere(python, packages, request):
                if "name" in answer:
                    self._served = answer

    def _replace_on_changes(self) -> None:
        from watchfiles import PythonFilter, watch

        files = {Path(one) for one in self._served["files"]}
        folders = {one.parent for one in files}
        changes = watch(
            *folders,
            watch_filter=PythonFilter(),
            debounce=_DEBOUNCE_MS,
            step=_DEBOUNCE_MS,
            stop_event=self._ended,
            recursive=False,
            raise_interrupt=True,
        )
        for changed in changes:
            names = sorted({Path(path).name for _, path in changed if Path(path) in files})
            if not names:
                continue
            try:
                self._register()
            except CliError as error:
                say(f"{', '.join(names)} changed, but the model was not replaced: {error}")
                continue
            files |= {Path(one) for one in self._served["files"]}
            say(f"{', '.join(names)} changed: replaced {self._served['name']}")

    def _print_in_background(self) -> None:
        name = self._served["name"]
        for path, show in (
            (self._rundir.access_log_file(name), _print_request),
            (self._rundir.log_file(name), _print_record),
        ):
            threading.Thread(target=_follow, args=(path, show), daemon=True).start()

    def _unregister(self) -> None:
        from pytriton._cli import daemon_connection
        from pytriton._protocol import messages

        if self._rundir.running_pid() is not None:
            with contextlib.suppress(CliError):  # another process has unregistered it
                daemon_connection.ask(self._rundir, messages.Unregister(self._served["name"]))


def _follow(path: Path, show: Any) -> None:
    from pytriton._host.log_files import follow

    for line in follow(path, 0):
        show(line)


def _print_request(line: str) -> None:
    import msgspec

    from pytriton._protocol import messages

    try:
        entry = msgspec.json.decode(line, type=messages.RequestEntry)
    except msgspec.DecodeError:
        typer.echo(visible(line))
        return
    error = f"  {entry.error}" if entry.error else ""
    typer.echo(visible(f"{entry.status:<8} {entry.compute_ns / 1e6:8.1f} ms  {entry.id}{error}"))


def _print_record(line: str) -> None:
    from pytriton._cli.logs import pretty

    typer.echo(pretty(line, colors=sys.stdout.isatty()))


@command
def call(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model, or its route.")],
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="NAME=VALUE",
            help="Arguments of the function: text, numbers or JSON. NAME=@FILE sends a file.",
        ),
    ] = None,
    url: Annotated[
        Optional[str],
        typer.Option(help="Server, such as http://host:8000. Default: the running daemon."),
    ] = None,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="Write the response to a file.")
    ] = None,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Call a typed function, and print what it returns."""
    from pytriton.client.api_client import ApiClient, ApiError, parse_arguments

    if url is None:
        from pytriton._cli import daemon_connection

        status = daemon_connection.ask_status(daemon_connection.runtime_dir(runtime_dir))
        url = status.server.http_url
    try:
        with ApiClient(url, model) as client:
            operation = client.operation()
            given = parse_arguments(arguments or (), operation)
            streams = "text/event-stream" in operation["responses"]["200"]["content"]
            result = client.stream(**given) if streams else client(**given)
            _print_result(result, output, streams=streams)
    except (OSError, ValueError) as error:
        raise CliError(ExitCode.USAGE, str(error)) from None
    except ApiError as error:
        raise CliError(ExitCode.ERROR, str(error)) from None


def _print_result(result: Any, output: Path | None, *, streams: bool) -> None:
    import json

    if streams:
        for item in result:
            typer.echo(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))
    elif isinstance(result, bytes):
        if output is None and sys.stdout.isatty():
            raise CliError(
                ExitCode.USAGE,
                f"the response is {len(result)} binary bytes: write it with --output FILE",
            )
        if output is None:
            sys.stdout.buffer.write(result)
        else:
            output.write_bytes(result)
    else:
        text = json.dumps(result, indent=2, ensure_ascii=False)
        if output is None:
            typer.echo(text)
        else:
            output.write_text(text + "\n", encoding="utf-8")
