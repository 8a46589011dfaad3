"""Add pages from the root of the checkout to the site, and adjust their links."""

from __future__ import annotations

import re
from pathlib import Path

#: File of the checkout -> page of the site.
PAGES = {
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "contributing/changelog.md",
    "SECURITY.md": "contributing/reporting.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def pages(root: Path) -> dict[str, str]:
    """Return the pages by their path in the site."""
    return {page: _moved((root / name).read_text(encoding="utf-8")) for name, page in PAGES.items()}


def _moved(text: str) -> str:
    return _LINK.sub(_link, text)


def _link(match: re.Match[str]) -> str:
    """Return a link relative to contributing/. Links to files that are not pages become plain text."""
    text, target = match.groups()
    path, mark, anchor = target.partition("#")
    if "://" in target or not path:
        return match[0]
    if path in PAGES:
        return f"[{text}]({PAGES[path].rpartition('/')[2]}{mark}{anchor})"
    if path.startswith("docs/"):
        return f"[{text}](../{path[len('docs/') :]}{mark}{anchor})"
    return text
