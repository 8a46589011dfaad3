"""Checks the built site for accessibility problems, and saves screenshots at desktop and phone width.

Run by `scripts/docs --accessibility`. Playwright drives the system's chromium, and axe-core (of axe-playwright-python)
finds the problems.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

#: The pages that pictures are made of.
PICTURES = {
    "start": "index.html",
    "five-minutes": "start/five-minutes.html",
    "tutorial": "tutorials/onnx.html",
    "reference": "reference/python/clients.html",
    "settings": "reference/configuration.html",
}
#: What a reader types into the search, for its picture.
_SEARCHED = "memory budget"
_RESULT = ".md-search-result__item"
#: axe-core's words for what keeps some readers from reading; the others are advice.
_SERIOUS = ("serious", "critical")
#: How long a page may take on a busy machine.
_PATIENCE_MS = 120_000
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class View(NamedTuple):
    """A window size and colour scheme."""

    name: str
    width: int
    height: int
    colours: Literal["light", "dark"]


VIEWS = (View("desk", 1280, 900, "light"), View("phone", 390, 844, "dark"))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on a free port of 127.0.0.1, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def look(browser: Browser, address: str, pages: list[str], view: View, out: Path) -> Iterator[str]:
    """Save the screenshots of a view in `out`, and yield one line per problem."""
    context = browser.new_context(
        viewport={"width": view.width, "height": view.height}, color_scheme=view.colours
    )
    page = context.new_page()
    page.on("pageerror", lambda error: print(f"{page.url}: {error}", file=sys.stderr))
    page.set_default_timeout(_PATIENCE_MS)
    for title, name in PICTURES.items():
        page.goto(f"{address}/{name}")
        page.screenshot(path=out / f"{title}-{view.name}.png")
    for name in pages:
        yield from (f"{view.name}: {one}" for one in _look_at(page, name, f"{address}/{name}"))
    try:
        _search(page, f"{address}/index.html")
        yield from (f"{view.name}: the search: {one}" for one in _faults(page))
        page.screenshot(path=out / f"search-{view.name}.png")
    except TimeoutError:
        yield f"{view.name}: the search: it found nothing within {_PATIENCE_MS // 1000} s"
    context.close()


def _look_at(page: Page, name: str, address: str) -> Iterator[str]:
    try:
        page.goto(address)
        yield from (f"{name}: {one}" for one in _faults(page))
    except TimeoutError:
        yield f"{name}: it did not come within {_PATIENCE_MS // 1000} s"


def _search(page: Page, address: str) -> None:
    page.goto(address)
    if not page.locator(".md-search__input").is_visible():
        page.locator("label[for=__search].md-header__button").click()
    page.locator(".md-search__input").fill(_SEARCHED)
    page.locator(_RESULT).first.wait_for()


def _faults(page: Page) -> Iterator[str]:
    """Yield the serious problems that axe-core finds, and whether the page is wider than the window."""
    for one in Axe().run(page).response["violations"]:
        if one["impact"] in _SERIOUS:
            places = ", ".join(str(node["target"][0]) for node in one["nodes"][:3])
            yield f"{one['id']} ({one['impact']}): {one['help']}; {len(one['nodes'])} times: {places}"
    wider = page.evaluate(_WIDER)
    if wider > 0:
        yield f"it is {wider} pixels wider than the window"


def main() -> int:
    """Save the screenshots and print the problems; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="scripts/docs --accessibility", description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("out", type=Path, nargs="?", help="folder of the pictures")
    parser.add_argument("--all", action="store_true", help="check every page, which takes minutes")
    arguments = parser.parse_args()
    site: Path = arguments.site
    out: Path = arguments.out or site.parent / "accessibility"
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        print(f"no browser: one of {', '.join(_BROWSERS)} has to be on PATH", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    pages = list(PICTURES.values())
    if arguments.all:
        pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    found = 0
    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for view in VIEWS:
            for one in look(browser, address, pages, view, out):
                found += 1
                print(one, flush=True)  # at once: all pages take minutes
        browser.close()
    print(f"{len(pages)} pages in {len(VIEWS)} views, {found} findings; pictures in {out}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
