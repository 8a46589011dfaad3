"""The command `serve`, which serves a function as a web API until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command, errors_of_clients
from pytriton._cli.flags import InstancesFlag, PythonFlag, RuntimeDirFlag
from pytriton._cli.output import say, visible
from pytriton._host.interrupt import interrupt
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

if TYPE_CHECKING:
    from pytriton._register.packing import Packer

#: Changes are handled once no file has changed for the first time, or at the latest after the second, in milliseconds.
_STILL_MS, _DEBOUNCE_MS = 30, 200
#: Interval between checks of the daemon, and of files whose changes the kernel does not report, in seconds.
_CHECK_S = 1.0
#: The same if no files are watched. An exit of the daemon is noticed at once.
_IDLE_S = 60.0
#: Maximum time without a message from the daemon, except during a registration.
_ANSWER_S = 30.0

_Entries = dict[str, tuple[int, int, int]]


@command
def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION|TOOL:MODEL",
            help="The function to serve, in a file or as MODULE:FUNCTION. FILE.py is enough if it has only one. Or another "
            "tool's model: mlflow:PATH, hf:TASK=PATH, sentence-transformers:PATH, torchserve:FILE.mar, "
            "litserve:FILE.py:API.",
        ),
    ],
    name: Annotated[
        Optional[str], typer.Option(help="Model name, instead of the function's own.")
    ] = None,
    route: Annotated[
        Optional[str], typer.Option(help="Path of its URL. Default: / and the model's name.")
    ] = None,
    instances: InstancesFlag = None,
    python: PythonFlag = None,
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
        Optional[str],
        typer.Option(help="Address of a temporary daemon. Default: 127.0.0.1."),
    ] = None,
    port: Annotated[
        Optional[int],
        typer.Option(help="HTTP port of a temporary daemon; 0 takes a free one. Default: 8000."),
    ] = None,
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
    from pytriton._register.packing import Packer
    from pytriton.foreground import daemon_at
    from pytriton.formats.table import tool_of

    if requirement and tool_of(target) is None:
        raise typer.BadParameter(
            "--requirement works only with a model from another tool, such as mlflow:PATH"
        )
    options = {
        "model_name": name,
        "route": route,
        "instances": None if instances is None else wanted_instances(instances),
        "factory": factory or None,
        "python": python,
        "requirements": requirement or None,
    }
    watches = sys.stdout.isatty() if reload is None else reload
    rundir = daemon_connection.runtime_dir(runtime_dir)
    daemon_connection.running_pid(rundir)  # reports a directory of another user
    signal.signal(signal.SIGTERM, interrupt)
    with errors_of_clients():
        packer = Packer(None if tool_of(target) is not None else python)
    try:
        with errors_of_clients():
            packer.prepare()  # it imports while the daemon starts
            with daemon_at(rundir, host, port) as found:
                served = _ServedTarget(
                    target, options, found, packer, shows_all=found.path != rundir.path
                )
                served.run(watches=watches)
    except KeyboardInterrupt:
        say("pytriton-daemon: stopped")
    finally:
        packer.close()


class _ServedTarget:
    """The callable to serve. Its module is imported again for each registration.

    Args:
        target: FILE.py:FUNCTION or MODULE:FUNCTION
        options: keyword arguments of `DaemonClient.register`
        rundir: runtime directory of the daemon
        packer: imports the module
        shows_all: whether errors of requests to other paths are printed, too
    """

    def __init__(
        self,
        target: str,
        options: dict[str, Any],
        rundir: RuntimeDir,
        packer: Packer,
        *,
        shows_all: bool,
    ) -> None:
        from pytriton.daemon import connect
        from pytriton.foreground import Console

        self._target = target
        self._rundir = rundir
        self._packer = packer
        self._options = {name: value for name, value in options.items() if value is not None}
        self._options.update(access_log=True, ephemeral=True)
        self._client = connect(rundir.path, timeout_s=_ANSWER_S)
        self._console = Console(rundir, typer.echo, shows_all=shows_all)
        self._name = ""
        self._files = _Files([os.path.dirname(os.path.abspath(target.partition(":")[0]))])

    def run(self, *, watches: bool) -> None:
        """Serve the callable until interrupted; with `watches`, replace it when its files change.

        Raises:
            CliError: it cannot be registered
            PyTritonError: the daemon refused it, or has exited
        """
        from pytriton.exceptions import ModelExistsError
        from pytriton.foreground import announce, unregister, wait

        if watches:
            # Bytecode records its source's time in whole seconds, so a second save within the same second would be missed.
            self._options["env"] = {"PYTHONDONTWRITEBYTECODE": "1"}
        with self._console:
            try:
                try:
                    self._register(replace=False)
                except ModelExistsError as error:
                    raise CliError(
                        ExitCode.REGISTRATION_FAILED,
                        f"the running daemon already serves a model named {error.model_name!r}: choose another name with "
                        f"--name, or unregister it first: pytriton-daemon unregister {error.model_name}",
                    ) from None
                announce(self._client.model_info(self._name), say)
                while True:
                    if watches:
                        self._packer.prepare()
                        self._files.wait(_CHECK_S)
                        self._replace_if_changed()
                    wait(self._rundir, 0.0 if watches else _IDLE_S)
            finally:
                self._files.close()
                if self._name:
                    unregister(self._client, self._name)

    def _register(self, *, replace: bool) -> None:
        from pytriton._protocol import messages
        from pytriton._register.packing import PackRequest, Refused
        from pytriton.foreground import unregister

        packed = self._packer.pack(PackRequest(self._target, {**self._options, "replace": replace}))
        self._files.add(packed.folders)
        if isinstance(packed, Refused):
            raise CliError(ExitCode.USAGE, packed.error)
        message = messages.decode(packed.message)
        assert isinstance(message, messages.Register)  # what `Packed` holds
        name = message.spec.name
        if name != self._name:
            web = message.spec.web
            self._console.follow(name, web.path if web is not None else "")
        self._client.register_prepared(message, packed.payloads)
        former, self._name = self._name, name
        if former not in ("", name):
            unregister(self._client, former)

    def _replace_if_changed(self) -> None:
        from pytriton.exceptions import PyTritonError

        changed = self._files.changed()
        if not changed:
            return
        began = time.monotonic()
        names = ", ".join(changed[:3]) + (" …" if len(changed) > 3 else "")
        try:
            self._register(replace=True)
        except (CliError, PyTritonError) as error:
            self._files.include_folders = True
            say(visible(str(error), keep="\n"))
            say(f"{names} changed, but cannot be served: the previous version keeps serving")
        else:
            self._files.include_folders = False
            say(f"{names} changed: replaced {self._name} within {time.monotonic() - began:.1f} s")


class _Files:
    """Watches the Python files in some folders.

    The kernel's notifications only end a wait. What has changed is seen by comparing the files, which also finds changes
    that have no notifications: on network file systems, or of a folder that is replaced or is a symbolic link.

    Attributes:
        include_folders: whether changes in subfolders count, where a missing module may appear
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self.include_folders = False
        self._seen: dict[str, _Entries] = {}
        self._watched: set[tuple[str, int, int]] = set()
        self._changes: Generator[object, None, None] | None = None
        self.add(folders)

    def add(self, folders: Iterable[str]) -> None:
        """Start watching more folders; only later changes count."""
        for folder in folders:
            if folder not in self._seen:
                self._seen[folder] = _entries(folder)

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until something in the folders has changed and the changes have settled."""
        from watchfiles import watch

        watched = set(self._folders())
        if watched != self._watched:
            self.close()
            self._watched = watched
            if watched:
                self._changes = watch(
                    *sorted(path for path, *_ in watched),
                    watch_filter=None,
                    debounce=_DEBOUNCE_MS,
                    step=_STILL_MS,
                    rust_timeout=int(seconds * 1000),
                    yield_on_timeout=True,
                    recursive=False,
                )
        if self._changes is None:
            time.sleep(seconds)
            return
        try:
            next(self._changes)
        except (
            OSError,
            RuntimeError,
        ):  # a folder has just been deleted, or the user has no watches or watchers left
            self.close()
            time.sleep(seconds)

    def close(self) -> None:
        """Stop watching."""
        if self._changes is not None:
            self._changes.close()
        self._changes, self._watched = None, set()

    def changed(self) -> list[str]:
        """Return the names of the files that have changed since the last call."""
        names = set()
        for folder, seen in self._seen.items():
            now = _entries(folder)
            for name in seen.keys() | now.keys():
                if seen.get(name) != now.get(name) and (
                    self.include_folders or not name.endswith("/")
                ):
                    names.add(name)
            self._seen[folder] = now
        return sorted(names)

    def _folders(self) -> Iterator[tuple[str, int, int]]:
        """Yield the path, device and inode of each folder to watch, including those of linked files."""
        paths = set(self._seen)
        for folder, entries in self._seen.items():
            for name in entries:
                path = os.path.join(folder, name)
                if name.endswith("/"):
                    if self.include_folders:
                        paths.add(path.rstrip("/"))
                elif os.path.islink(path):
                    paths.add(os.path.dirname(os.path.realpath(path)))
        for path in paths:
            with contextlib.suppress(OSError):  # it is being replaced
                about = os.stat(path)
                yield path, about.st_dev, about.st_ino


def _entries(folder: str) -> _Entries:
    """Return the time, size and inode of each Python file and each subfolder."""
    found: _Entries = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_file = entry.name.endswith(".py")
                if not is_file and (entry.name.startswith((".", "__")) or not entry.is_dir()):
                    continue
                with contextlib.suppress(OSError):  # it was deleted, or is a link to nothing
                    about = entry.stat()
                    name = entry.name if is_file else f"{entry.name}/"
                    found[name] = (about.st_mtime_ns, about.st_size, about.st_ino)
    except OSError:  # the folder is being replaced
        pass
    return found
