"""The command `top`: shows the live screen, or prints a table or JSON, depending on its flags."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytriton._cli import daemon_connection
from pytriton._cli.errors import CliError
from pytriton._cli.output import visible
from pytriton._cli.top.cells import columns_for, full_width, room_for_last_exit, room_for_names
from pytriton._cli.top.feed import Feed
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.rates import SORTING, Row, headline, sort_rows


def run(
    runtime_dir: Path | None,
    containing: str,
    *,
    interval_s: float,
    order: str,
    once: bool,
    as_json: bool,
) -> None:
    """Show the table live, or print it once if that is requested or there is no terminal.

    Raises:
        CliError: no daemon is running, or it does not answer.
    """
    if order not in SORTING:
        raise typer.BadParameter(
            f"--sort: unknown order {order!r}; use one of: {', '.join(SORTING)}"
        )
    feed = Feed(daemon_connection.runtime_dir(runtime_dir))
    if not (once or as_json) and sys.stdin.isatty() and sys.stdout.isatty():
        from pytriton._cli.top.screen import TopApp

        feed.take()  # before the screen changes, so that a missing daemon is reported in the usual way
        TopApp(feed, interval_s, containing, order).run()
        return
    feed.take()
    time.sleep(interval_s)  # the table shows what happens in this interval
    metrics, rows = feed.take()
    found = sort_rows(rows, order, containing)
    if containing and not found:
        there = ", ".join(sorted({row.model for row in rows})) or "none"
        raise CliError(
            ExitCode.REGISTRATION_FAILED,
            f"no model has {containing!r} in its name; registered models: {there}",
        )
    if as_json:
        typer.echo(as_json_text(metrics, found, feed.seconds))
    else:
        print_table(metrics, found)


def print_table(metrics: messages.MetricsSnapshot, rows: list[Row]) -> None:
    """Print a line about the daemon, and the table."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = full_width(rows)  # there is no line width to respect
    console.print(Text(headline(metrics.daemon, metrics.at)))
    for problem in metrics.daemon.problems:
        console.print(Text(visible(problem), style="red"))
    if not rows:
        console.print("no models")
        return
    columns = columns_for(rows, console.width)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    room = room_for_last_exit(columns, rows, console.width)
    names = room_for_names(columns, rows, console.width)
    for one in columns:
        table.add_column(
            one.title,
            justify="right" if one.right else "left",
            no_wrap=True,
            max_width=room if one.leaves == 1 else names if one is columns[0] else None,
        )
    for row in rows:
        table.add_row(*(one.cell(row) for one in columns))
    console.print(table)


def as_json_text(metrics: messages.MetricsSnapshot, rows: list[Row], seconds: float) -> str:
    """Return the content of the table as a JSON object, with times in seconds and memory in bytes."""
    daemon = metrics.daemon
    return json.dumps(
        {
            "at": metrics.at,
            "interval_s": seconds,
            "daemon": {"state": daemon.state, "pid": daemon.pid, "server": daemon.server_state},
            "rows": [asdict(row) for row in rows],
        }
    )
