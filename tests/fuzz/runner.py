"""Run targets block by block, and print the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from fuzz import bodies, clients, control, lanes, parsers, target_daemon, workers
from fuzz.target import Finding, Tally, Target

_HERE: tuple[Callable[[], Target], ...] = (
    lanes.LaneEnd, parsers.ControlMessages, parsers.Payloads, parsers.Strings, parsers.Settings,
    bodies.TypedBodies, bodies.RouteDescriptions,
)  # fmt: skip
_OUTSIDE: tuple[Callable[[target_daemon.TargetDaemon], Target], ...] = (
    clients.HostileClients,
    control.ControlSocket,
    workers.WorkerLane,
    workers.StreamingWorkerLane,
)
NAMES = tuple(
    kind.name  # type: ignore[attr-defined]
    for kind in (*_OUTSIDE, *_HERE)
)


@dataclass
class Row:
    """The result of one target."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    finding: str = ""


def fuzz(seed: int, cases: int, only: Sequence[str] = (), first: int = 0) -> list[Row]:
    """Run `cases` cases, divided among the named targets, starting with the number `first` in each."""
    chosen = list(only) or list(NAMES)
    with ExitStack() as stack:
        made = [make() for make in _HERE if _name(make) in chosen]
        if any(_name(make) in chosen for make in _OUTSIDE):
            place = stack.enter_context(target_daemon.running_target())
            made = [make(place) for make in _OUTSIDE if _name(make) in chosen] + made
        whole = sum(target.share for target in made)
        rows = []
        for target in made:
            stack.callback(target.close)
            rows.append(_run(target, seed, first, round(cases * target.share / whole)))
            print(_line(rows[-1]), *filter(None, [rows[-1].finding]), sep="\n", flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, with their sum."""
    whole = Row("all")
    for row in rows:
        whole.cases += row.cases
        whole.seconds += row.seconds
        whole.tally.accepted += row.tally.accepted
        whole.tally.refused += row.tally.refused
    names = ("target", "cases", "accepted", "refused", "seconds", "cases/s", "findings")
    header = "| " + " | ".join(names) + " |\n|---|--:|--:|--:|--:|--:|--:|"
    return "\n".join([header, *map(_line, [*rows, whole])])


def _name(make: Callable[..., Target]) -> str:
    return str(make.name)  # type: ignore[attr-defined]


def _run(target: Target, seed: int, first: int, count: int) -> Row:
    row = Row(target.name)
    started = time.monotonic()
    try:
        target.check()
        for start in range(first, first + count, target.block):
            block = range(start, min(start + target.block, first + count))
            try:
                target.run(seed, block, row.tally)
                target.check()
            except Finding as finding:
                finding.cases = finding.cases or block
                raise
            row.cases += len(block)
    except Finding as finding:
        row.finding = _story(finding, target.name, seed)
    row.seconds = time.monotonic() - started
    return row


def _story(finding: Finding, target: str, seed: int) -> str:
    cases = list(finding.cases) or [0]
    count = cases[-1] - cases[0] + 1
    return (
        f"{target}: {finding}\n  again: scripts/tools/fuzz --seed {seed} --only {target} "
        f"--first {cases[0]} --cases {count}"
    )


def _line(row: Row) -> str:
    rate = row.cases / row.seconds if row.seconds else 0
    counts = (row.cases, row.tally.accepted, row.tally.refused)
    numbers = " | ".join(f"{count:,}" for count in counts)
    found = "yes" if row.finding else "0"
    return f"| {row.name} | {numbers} | {row.seconds:.1f} | {rate:,.0f} | {found} |"
