"""The pages of settings and metrics, and the table of events in the page that explains them."""

from __future__ import annotations

from pathlib import Path

from pytriton._host.settings.rendering import configuration_page
from pytriton.dispatcher.telemetry.events.kinds_table import with_table
from pytriton.dispatcher.telemetry.metrics.metrics_page import metrics_page

_DOCS = Path("docs")
_EVENTS = _DOCS / "operations" / "explain.md"


def files(root: Path) -> dict[Path, str]:
    """Return the pages by their paths below `root`, where the rest of a page is read."""
    return {
        _DOCS / "reference" / "configuration.md": configuration_page(),
        _DOCS / "reference" / "metrics.md": metrics_page(),
        _EVENTS: with_table((root / _EVENTS).read_text(encoding="utf-8")),
    }
