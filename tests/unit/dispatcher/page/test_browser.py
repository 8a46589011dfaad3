"""The page in a real browser, with many models and with one whose name is code."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models.figures import model, snapshot, work

from pytriton.dispatcher.base.ports import listening
from pytriton.dispatcher.operations.server_thread import ServerThread
from pytriton.dispatcher.page.routes import Page, Sources
from pytriton.ipc.messages.answers import InstanceInfo, ModelInfo, ServerInfo, Status
from pytriton.ipc.messages.figures import Figures
from pytriton.ipc.messages.requests import RequestEntry, Requests

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")

HOSTILE = "<script>document.title='ran'</script>"
NAMES = [*(f"model-{number}" for number in range(200)), HOSTILE]


async def _figures() -> Figures:
    return snapshot(1010, *(model(name, work(50), last_exit=HOSTILE) for name in NAMES))


async def _status() -> Status:
    models = [
        ModelInfo(name, 1, "ready", [InstanceInfo(0, "ready", 1, last_exit=HOSTILE)])
        for name in NAMES
    ]
    return Status("1.0", 1, "python", "run", "ready", 1000.0, ServerInfo("ready", 2), models)


async def _requests(name: str) -> Requests:
    slow = RequestEntry(1.0, HOSTILE, name, 1, 0, "ok", 1_000_000, 48_200_000, 1, 3, 4, None)
    return Requests(name, False, "", slowest=[slow])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the page of a daemon with all of them is."""
    sources = Sources(
        _figures, _status, lambda name, lines: [HOSTILE], _requests, lambda _: False, dict
    )
    listener = listening("127.0.0.1", 0, "page", backlog=8)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/page/"
    server = ServerThread(Page(sources).routes(), [listener])
    yield url
    server.stop()


def _shown(url: str, folder: Path) -> tuple[str, str]:
    """Return the page as the browser has it some seconds later, and what it complains of."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]
    command += [f"--user-data-dir={folder}", "--virtual-time-budget=5000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def test_two_hundred_models_are_shown_and_names_are_no_code(url: str, tmp_path: Path) -> None:
    page, complaints = _shown(f"{url}#{HOSTILE}", tmp_path)
    rows = re.search(r'<tbody id="rows">(.*?)</tbody>', page, re.DOTALL)
    assert rows is not None
    assert rows[1].count("<tr") == len(NAMES)
    for name in ("model-0", "model-199"):
        assert f">{name}</button>" in rows[1]
    assert f'id="model-title" tabindex="-1">{_escaped(HOSTILE)}<' in page
    slowest = re.search(r'<div id="slowest".*?>(.*?)</div>', page, re.DOTALL)
    assert slowest is not None
    assert [
        f"<td{one}" in slowest[1]
        for one in (">48.2<", ">1.00<", f' class="last">{_escaped(HOSTILE)}<')
    ] == [True] * 3
    assert page.count("<script") == 1
    assert "<title>pytriton-daemon</title>" in page
    assert "Content Security Policy" not in complaints


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")
