"""The `top` command: chooses the live screen, the table or JSON by its flags."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import typer

from pytriton._cli import daemon_connection
from pytriton._cli.errors import CliError
from pytriton._cli.top.feed import Feed
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.rates import SORTING, arranged


def run(
    runtime_dir: Path | None,
    containing: str,
    *,
    interval_s: float,
    order: str,
    once: bool,
    as_json: bool,
) -> None:
    """Show the table live; once if requested or without a terminal.

    Raises:
        CliError: no daemon runs, or it does not answer.
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
    from pytriton._cli.top import plain

    feed.take()
    time.sleep(interval_s)  # the table shows what happens in this interval
    metrics, rows = feed.take()
    found = arranged(rows, order, containing)
    if containing and not found:
        there = ", ".join(sorted({row.model for row in rows})) or "none"
        raise CliError(
            ExitCode.REGISTRATION_FAILED,
            f"no model has {containing!r} in its name; registered models: {there}",
        )
    if as_json:
        typer.echo(plain.as_json(metrics, found, feed.seconds))
    else:
        plain.print_table(metrics, found)
