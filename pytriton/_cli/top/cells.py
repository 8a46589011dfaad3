"""The columns of the table and the text of their cells, for the live screen and the printed table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from pytriton._cli.output import visible
from pytriton._protocol import messages
from pytriton._protocol.rates import Row, milliseconds, size

_GOOD = {"ready", "standby", "serving", "suspended"}
_BAD = {"failed", "lost", "degraded"}
#: Share of busy time at which an instance is highlighted.
_BUSY = 0.9


@dataclass(frozen=True)
class Column:
    """One column: its title, its cell text, and the order in which columns are dropped in a narrow table (0: never)."""

    title: str
    cell: Callable[[Row], Text]
    leaves: int = 0
    right: bool = True


def _name(row: Row) -> Text:
    if row.instance:
        return Text(f"  └ {row.instance}", style="dim")
    return Text(visible(row.model))


def _state(row: Row) -> Text:
    style = "green" if row.state in _GOOD else "red" if row.state in _BAD else "yellow"
    return Text(row.state, style=style)


def _count(row: Row) -> Text:
    if row.instance:
        return Text("" if row.pid is None else str(row.pid), style="dim")
    there, wanted = row.instances
    if not wanted:
        return Text("0" if row.state == "suspended" else "-")
    return Text(f"{there}/{wanted}", style="" if there >= wanted else "red")


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _failures(row: Row) -> Text:
    failed = row.rates.failures_s
    return Text(_rate(failed) if failed else "0", style="red" if failed else "")


def _busy(row: Row) -> Text:
    return Text(f"{row.rates.busy:.0%}", style="yellow" if row.rates.busy >= _BUSY else "")


def _exits(row: Row) -> Text:
    return Text(str(row.exits), style="red" if row.exits else "")


def _waiting(row: Row) -> Text:
    return Text("-" if row.waiting is None else str(row.waiting))


def _rows(row: Row) -> Text:
    return Text("-" if row.rates.rows is None else f"{row.rates.rows:.1f}")


COLUMNS = (
    Column("model", _name, right=False),
    Column("state", _state, right=False),
    Column("inst", _count),
    Column("req/s", lambda row: Text(_rate(row.rates.requests_s))),
    Column("fail/s", _failures),
    Column("queue", _waiting, leaves=4),
    Column("rows", _rows, leaves=3),
    Column("wait ms", lambda row: Text(milliseconds(row.rates.wait_p50)), leaves=5),
    Column("p50 ms", lambda row: Text(milliseconds(row.rates.p50)), leaves=7),
    Column("p99 ms", lambda row: Text(milliseconds(row.rates.p99))),
    Column("busy", _busy),
    Column("memory", lambda row: Text(size(row.resident)), leaves=6),
    Column("exits", _exits),
    Column("device", lambda row: Text(visible(row.device or "")), leaves=2, right=False),
    Column(
        "last exit", lambda row: Text(visible(row.last_exit), style="dim"), leaves=1, right=False
    ),
)
#: Space between columns.
_GAP = 2
#: Minimum and maximum width of "last exit", if it is shown.
_MIN_EXIT_WIDTH, _MAX_EXIT_WIDTH = 30, 500
#: Minimum width of names.
_MIN_NAME_WIDTH = 12


def columns_for(rows: list[Row], width: int) -> list[Column]:
    """Return the columns that fit into a width. The least important ones are dropped first; "last exit" may be
    truncated.
    """
    chosen = list(COLUMNS)
    while _width(chosen, rows) > width:
        spare = [one for one in chosen if one.leaves]
        if not spare:
            break
        chosen.remove(min(spare, key=lambda one: one.leaves))
    return chosen


def _width(columns: list[Column], rows: list[Row]) -> int:
    return sum(_column_width(one, rows) + _GAP for one in columns)


def _column_width(column: Column, rows: list[Row]) -> int:
    widest = max([len(column.title), *(column.cell(row).cell_len for row in rows)])
    return min(widest, _MIN_EXIT_WIDTH) if column.leaves == 1 else widest


def room_for_names(columns: list[Column], rows: list[Row], width: int) -> int:
    """Return the width that the other columns leave for names. Long names are truncated, but never numbers."""
    others = [one for one in columns if one is not COLUMNS[0]]
    return max(_MIN_NAME_WIDTH, width - _width(others, rows) - _GAP)


def room_for_last_exit(columns: list[Column], rows: list[Row], width: int) -> int:
    """Return the width that remains for "last exit" if no other column is truncated."""
    others = [one for one in columns if one.leaves != 1]
    return max(_MIN_EXIT_WIDTH, width - _width(others, rows) - _GAP)


def full_width(rows: list[Row]) -> int:
    """Return the width at which nothing is truncated except very long reasons in "last exit"."""
    last = max([len("last exit"), *(len(visible(row.last_exit)) for row in rows)])
    return (
        _width([one for one in COLUMNS if one.leaves != 1], rows)
        + min(last, _MAX_EXIT_WIDTH)
        + _GAP
    )


def explanation_lines(found: messages.Explanation) -> list[Text]:
    """Return the lines of a model's explanation: the verdict, and the findings with their fixes."""
    lines = [Text(visible(found.verdict), style="bold")]
    for one in found.findings:
        style = "" if one.severity == "notice" else "red"
        if not found.verdict.endswith(one.text):  # else the verdict already says it
            lines.append(Text(f"{one.severity}: {visible(one.text)}", style=style))
        lines += [Text(f"  Fix: {visible(one.advice)}")] if one.advice else []
    return lines


def request_lines(requests: messages.Requests) -> list[Text]:
    """Return lines with a model's slowest requests and its most recent failures; the numbers fit into 80 columns."""
    found = []
    for title, entries in (
        ("slowest of the last hour", requests.slowest),
        ("last failed", requests.failed),
    ):
        found.append(Text(f"{title} ({len(entries)})", style="bold"))
        found += [Text(_REQUEST_HEAD, style="dim")] if entries else []
        found += [_request_line(one) for one in entries]
    return found


_REQUEST_HEAD = (
    f"{'time':8} {'inst':>4} {'status':13} {'call ms':>9} {'wait ms':>9} {'rows':>5}  id, error"
)


def _request_line(entry: messages.RequestEntry) -> Text:
    when = time.strftime("%H:%M:%S", time.localtime(entry.time))
    line = Text(f"{when} {entry.instance:>4} ")
    line.append(f"{entry.status:13}", style="" if entry.status == "ok" else "red")
    wait_s = None if entry.queue_ns is None else entry.queue_ns / 1e9
    line.append(f" {milliseconds(entry.compute_ns / 1e9):>9} {milliseconds(wait_s):>9}")
    name = f"{entry.id}  {entry.error}".rstrip()
    line.append(f" {entry.batch_rows:>5}  {visible(name)}")
    line.no_wrap = True
    return line
