"""The results of a run as a table: the outcomes of the requests during each fault."""

from __future__ import annotations

from typing import Any

from chaos.run import Outcome


def table(outcome: Outcome) -> str:
    """Return the table, and below it the texts of the errors."""
    rows: list[tuple[Any, ...]] = [
        (
            name,
            one.injected,
            one.sent,
            one.right,
            one.guilty,
            one.failed,
            one.wrong,
            one.lost,
            one.gap_s,
            one.recovery_s,
        )
        for name, one in outcome.ledger.accounts.items()
    ]
    sums = [sum(row[i] for row in rows) for i in range(1, 8)]
    rows.append(("all", *sums, *(max(row[i] for row in rows) for i in (8, 9))))
    names = ("times", "sent", "right", "guilty", "clear error", "wrong", "lost", "longest gap")
    lines = [_row("fault", *names, "recovery")]
    lines += [_row(*row[:8], f"{row[8]:.2f} s", f"{row[9]:.0f} s") for row in rows]
    lines.append(f"{outcome.seconds:.0f} s; leaks: {'; '.join(outcome.leaks) or 'none'}")
    for name, one in outcome.ledger.accounts.items():
        lines += [f"  {name}: {count} x {text}" for text, count in one.texts.most_common(4)]
    return "\n".join(lines)


def _row(name: str, *values: object) -> str:
    widths = (6, 9, 9, 8, 13, 7, 6, 13, 10)
    return f"{name:<18}" + "".join(f"{value!s:>{width}}" for value, width in zip(values, widths))
