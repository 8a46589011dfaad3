"""Generate the page of settings, and the tables at the end of the pages about events and metrics."""

from __future__ import annotations

from pathlib import Path

from pytriton._host.settings.rendering import configuration_page
from pytriton.dispatcher.telemetry.events.kinds import KINDS
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES

_DOCS = Path("docs")
_EVENTS = _DOCS / "operations" / "explain.md"
_METRICS = _DOCS / "reference" / "metrics.md"


def files(root: Path) -> dict[Path, str]:
    """Return the pages by path. The text before a table is read from the existing page."""
    return {
        _DOCS / "reference" / "configuration.md": configuration_page(),
        _METRICS: _with_table(root / _METRICS, metric_table()),
        _EVENTS: _with_table(root / _EVENTS, event_table()),
    }


def event_table() -> str:
    """Return the kinds of events as a table in Markdown."""
    rows = ["| kind | meaning | numbers |", "|---|---|---|"]
    for kind in KINDS.values():
        numbers = "; ".join(f"`{name}`: {meaning}" for name, meaning in kind.numbers.items())
        actor = " Includes the actor." if kind.is_audit else ""
        codes = "; ".join(f"`{code}`: {meaning}" for code, meaning in kind.codes.items())
        reasons = f" Its code: {codes}." if codes else ""
        rows.append(f"| `{kind.name}` | {kind.meaning}{reasons}{actor} | {numbers} |")
    return "\n".join(rows) + "\n"


def metric_table() -> str:
    """Return the daemon's metrics as a table in Markdown."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        kind = "histogram" if family.is_histogram else family.kind
        rows.append(f"| `{family.exposed_name}` | {kind} | {labels} | {family.help} |")
    return "\n".join(rows) + "\n"


def _with_table(path: Path, table: str) -> str:
    """Return the page in which the table at the end is replaced."""
    page = path.read_text(encoding="utf-8")
    head = table.partition("\n")[0]
    return page[: page.index(head)] + table
