"""The results of a run as a table: the outcomes of the requests during each fault."""

from __future__ import annotations

from chaos.run import Outcome


def table(outcome: Outcome) -> str:
    """Return the table, and below it the texts of the errors."""
    rows = [
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
        )
        for name, one in outcome.ledger.accounts.items()
    ]
    sums = [sum(row[i] for row in rows) for i in range(1, 8)]  # type: ignore[misc]
    rows.append(("all", *sums, max(row[8] for row in rows)))  # type: ignore[arg-type]
    names = ("times", "sent", "right", "guilty", "clear error", "wrong", "lost", "longest gap")
    lines = [_row("fault", *names)]
    lines += [_row(*row[:8], f"{row[8]:.2f} s") for row in rows]
    lines.append(f"{outcome.seconds:.0f} s; leaks: {'; '.join(outcome.leaks) or 'none'}")
    for name, one in outcome.ledger.accounts.items():
        lines += [f"  {name}: {count} x {text}" for text, count in one.texts.most_common(4)]
    return "\n".join(lines)


def _row(name: str, *values: object) -> str:
    widths = (6, 9, 9, 8, 13, 7, 6, 13)
    return f"{name:<18}" + "".join(f"{value!s:>{width}}" for value, width in zip(values, widths))
