"""The table printed once, for pipes and scripts."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytriton._cli.log_lines import visible
from pytriton._cli.top.cells import columns_for, full_width, room_for_last_exit, room_for_names
from pytriton._protocol import messages
from pytriton._protocol.rates import Row, headline


def print_table(metrics: messages.MetricsSnapshot, rows: list[Row]) -> None:
    """Print the daemon's line and the table."""
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


def as_json(metrics: messages.MetricsSnapshot, rows: list[Row], seconds: float) -> str:
    """Return the content of the table as a JSON object; times in seconds, memory in bytes."""
    daemon = metrics.daemon
    return json.dumps(
        {
            "at": metrics.at,
            "interval_s": seconds,
            "daemon": {"state": daemon.state, "pid": daemon.pid, "server": daemon.server_state},
            "rows": [asdict(row) for row in rows],
        }
    )
