"""Commands that start, stop and change the daemon: start, stop, drain, upgrade, reload, restart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import ConfigFlag, RuntimeDirFlag
from pytriton._cli.settings import load_settings, load_to_serve, saved_flags, with_setting_flags
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

ServerFlag = Annotated[
    bool,
    typer.Option(
        "--server",
        help="Replace only tritonserver, without losing requests. Needs the native frontend. The old process finishes "
        "its requests; `status` shows it until then.",
    ),
]
ForceFlag = Annotated[
    bool,
    typer.Option(
        "--force",
        help="With --server: replace it even while sequences are in progress. Their next requests fail (400).",
    ),
]
WaitModelsFlag = Annotated[
    bool,
    typer.Option(
        "--wait-models", help="With --detach: also wait until all persisted models are restored."
    ),
]
TimeoutFlag = Annotated[
    float,
    typer.Option("--timeout", min=0, help="Time to wait for the daemon to exit, in seconds."),
]


@command
@with_setting_flags
def start(
    flags: dict[str, Any],
    config: ConfigFlag = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Start in the background, and wait until the daemon is ready."
        ),
    ] = False,
    wait_models: WaitModelsFlag = False,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting and its source, and exit."),
    ] = False,
) -> None:
    """Start a daemon in the foreground, or with --detach in the background."""
    start_flags = StartFlags(flags, config)
    if print_config:
        from pytriton._host.settings.rendering import config_as_toml

        typer.echo(config_as_toml(load_settings(start_flags)), nl=False)
        return
    loaded = load_to_serve(start_flags)
    from pytriton._cli import launch

    if detach:
        _print_started(launch.run_detached(loaded.config, start_flags), wait_models)
    elif wait_models:
        raise CliError(ExitCode.USAGE, "--wait-models needs --detach")
    else:
        raise typer.Exit(launch.run_here(loaded.config, start_flags))


@command
def stop(runtime_dir: RuntimeDirFlag = None, timeout: TimeoutFlag = 120.0) -> None:
    """Stop the daemon after it has finished in-flight batches."""
    from pytriton._cli import daemon_connection

    pid = daemon_connection.stop(daemon_connection.runtime_dir(runtime_dir), timeout)
    typer.echo(f"stopped the daemon (pid {pid})")


@command
def drain(
    runtime_dir: RuntimeDirFlag = None,
    settle: Annotated[
        float,
        typer.Option(
            "--settle",
            min=0,
            max=86400,
            help="Time to keep accepting requests, so that load balancers can react, in seconds.",
        ),
    ] = 5.0,
    timeout: Annotated[
        Optional[float],
        typer.Option(
            "--timeout",
            min=0,
            max=86400,
            help="Maximum time for in-flight requests and streams to finish after that, in seconds. Default: grace_period_s.",
        ),
    ] = None,
    keep_running: Annotated[
        bool,
        typer.Option(
            "--keep-running",
            help="Do not stop the daemon; return once it can be stopped. For use in a preStop hook.",
        ),
    ] = False,
) -> None:
    """Drain the daemon before its host goes away, without failing requests or streams."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    rundir = daemon_connection.runtime_dir(runtime_dir)
    pid = daemon_connection.drain(rundir, messages.Drain(settle, timeout, not keep_running))
    typer.echo(
        "the daemon can be stopped now" if pid is None else f"the daemon has exited (pid {pid})"
    )


@command
def upgrade(
    runtime_dir: RuntimeDirFlag = None,
    python: Annotated[
        Optional[Path],
        typer.Option(
            "--python",
            metavar="PATH",
            help="Interpreter of another environment, which has the new version.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            max=86400,
            help="Maximum time to wait for changes to models in progress, in seconds.",
        ),
    ] = 30.0,
) -> None:
    """Upgrade the running daemon to the installed version; models keep serving in the same workers."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    rundir = daemon_connection.runtime_dir(runtime_dir)
    executable = None if python is None else str(python.absolute())
    event = daemon_connection.upgrade(rundir, messages.Upgrade(executable, wait))
    typer.echo(f"the daemon was upgraded {event.reason} (pid {rundir.running_pid()})")


@command
def reload(runtime_dir: RuntimeDirFlag = None) -> None:
    """Reload the settings of the running daemon, and show which changes apply now and which need a restart."""
    from pytriton._cli import daemon_connection

    answer = daemon_connection.reload(daemon_connection.runtime_dir(runtime_dir))
    typer.echo(f"changed: {', '.join(answer.applied) or 'nothing'}")
    if answer.needs_restart:
        waiting = ", ".join(answer.needs_restart)
        typer.echo(f"these need `pytriton-daemon restart`: {waiting}")


@command
@with_setting_flags
def restart(
    flags: dict[str, Any],
    config: ConfigFlag = None,
    timeout: TimeoutFlag = 120.0,
    server: ServerFlag = False,
    force: ForceFlag = False,
    wait_models: WaitModelsFlag = False,
) -> None:
    """Stop the daemon if it is running, and start it in the background.

    The settings file and the environment are read again. The flags of the last start remain in effect; flags given
    now override them.
    """
    from pytriton._cli import daemon_connection, launch

    rundir = daemon_connection.runtime_dir(
        Path(flags["runtime_dir"]) if "runtime_dir" in flags else None
    )
    if server:
        _replace_server(rundir, force)
        return
    if force:
        raise CliError(ExitCode.USAGE, "--force needs --server")
    pinned = {**flags, "runtime_dir": str(rundir.path)}
    start_flags = StartFlags(pinned, config).merged_over(saved_flags(rundir))
    # Load them before the stop, so that the old daemon keeps running if they are invalid.
    settings = load_to_serve(start_flags)
    pid = daemon_connection.running_pid(rundir)
    if pid is not None and daemon_connection.is_service(pid):
        text = (
            f"systemd runs the daemon (pid {pid}): use `systemctl restart pytriton-daemon`, or "
            "`systemctl --user restart pytriton-daemon` for a user service."
        )
        raise CliError(ExitCode.USAGE, text)
    if pid is not None:
        typer.echo(f"stopped the daemon (pid {daemon_connection.stop(rundir, timeout)})")
    _print_started(launch.run_detached(settings.config, start_flags), wait_models)


def _replace_server(rundir: RuntimeDir, force: bool) -> None:
    from pytriton._cli import daemon_connection
    from pytriton._cli.tables import retiring

    replaced = daemon_connection.replace_server(rundir, force=force)
    server = daemon_connection.ask_status(rundir).server
    if server.pid != replaced.pid:
        raise CliError(
            ExitCode.ERROR,
            f"tritonserver was replaced (pid {replaced.pid}), but the new process has already exited: "
            "see `pytriton-daemon logs` for the reason, and `pytriton-daemon status` for the current state",
        )
    typer.echo(f"tritonserver was replaced (pid {replaced.pid})")
    for line in retiring(server):
        typer.echo(f"  {line}")


def _print_started(status: Any, wait_models: bool) -> None:
    from pytriton._cli import daemon_connection
    from pytriton._cli.output import say
    from pytriton._cli.persisted_models import remarks, wait_until_restored
    from pytriton._cli.tables import endpoints

    if wait_models:
        rundir = daemon_connection.runtime_dir(Path(status.runtime_dir))
        status = wait_until_restored(
            status, lambda: daemon_connection.ask_status(rundir), report=say
        )
    typer.echo(f"the daemon is ready (pid {status.pid}), runtime directory {status.runtime_dir}")
    for line in endpoints(status.server):
        typer.echo(f"  {line}")
    for text in remarks(status):
        typer.echo(f"  {text}")
