"""Commands that show the state of the daemon: status, top, logs, access-token, version."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from pytriton._cli.errors import command
from pytriton._cli.flags import JsonFlag, RuntimeDirFlag, served_models
from pytriton._cli.output import print_json


@command
def status(runtime_dir: RuntimeDirFlag = None, as_json: JsonFlag = False) -> None:
    """Show the state of the daemon, its endpoints, and the workers of every model."""
    from pytriton._cli import daemon_connection

    answer = daemon_connection.ask_status(daemon_connection.runtime_dir(runtime_dir))
    if as_json:
        print_json(answer)
    else:
        from pytriton._cli.tables import print_status

        print_status(answer)


@command
def show_top(
    model: Annotated[
        str, typer.Argument(metavar="NAME", help="Only models whose names contain this.")
    ] = "",
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.2, help="Interval between updates, in seconds."),
    ] = 2.0,
    sort: Annotated[
        str,
        typer.Option(help="Sort by name, requests, p99, busy, memory, waiting or exits."),
    ] = "name",
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once, for one interval.")
    ] = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Show live metrics of models: requests, latency, memory, exits. Press keys to scale, roll back or unregister models."""
    from pytriton._cli.top.command import run

    run(runtime_dir, model, interval_s=interval, order=sort, once=once, as_json=as_json)


@command
def access_token(runtime_dir: RuntimeDirFlag = None) -> None:
    """Print the access token for Triton's restricted endpoints."""
    from pytriton._cli import daemon_connection

    typer.echo(daemon_connection.access_token(daemon_connection.runtime_dir(runtime_dir)))


@command
def logs(
    model: Annotated[
        Optional[str],
        typer.Argument(
            metavar="MODEL",
            help="Model whose log is shown. Default: the log of the daemon.",
            autocompletion=served_models,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines.")] = 100,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Show the log of the daemon or of one model, even if no daemon is running."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.logs import show

    show(daemon_connection.runtime_dir(runtime_dir), model, lines, follow=follow, as_json=as_json)


@command
def version() -> None:
    """Print the version."""
    from pytriton._cli.version import print_version

    raise typer.Exit(print_version())
