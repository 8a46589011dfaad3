"""Take the screenshots in the documents: `top`, the dashboard, and the page of typed functions.

The daemon has twelve models under load: one in a crash loop, one slow, one that is being scaled. Textual exports `top`
as SVG; chromium renders the pages.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support.browser import CHROMIUM, browser
from support.models.inference import Inference
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._cli.top.feed import Feed
from pytriton._cli.top.screen import TopApp
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
#: Model -> (duration of a call, pause between requests), in seconds; None: no requests.
MODELS: dict[str, tuple[float, float | None]] = {
    "bert-embed": (0.003, 0.02),
    "digits": (0.0005, 0.01),
    "fraud-score": (0.001, None),
    "ocr": (0.012, 0.03),
    "resnet": (0.006, 0.02),
    "slow-ranker": (0.35, 0.0),
    "tagger": (0.002, 0.05),
    "translate": (0.02, None),
    "vad": (0.0005, None),
    "whisper": (0.04, 0.02),
}
_CRASHING, _SCALING = "crashy", "scaling"
#: Whether the dashboard shows its charts and events and, if a model is open, the findings about it.
_IS_RENDERED = (
    "document.querySelector('.charts path') !== null && document.querySelector('#event-list td') !== null"
    " && (document.getElementById('model').hidden || document.querySelector('.finding') !== null)"
)
#: Duration of the load that the charts show.
_LOAD_S = 45.0
_TERMINAL = (150, 34)
#: Screenshots of the dashboard: file, window size, open model.
_PICTURES = (("page.png", (1200, 1900), _CRASHING), ("page-phone.png", (390, 1700), ""))


#: Elements to click on the page of typed functions, and conditions to wait for afterwards.
_DOCS_STEPS = (
    ("button.opblock-summary-control", "!!document.querySelector('OPERATION textarea')?.value"),
    (
        "button.execute",
        "document.querySelector('OPERATION .live-responses-table .response') !== null",
    ),
)


def _model(seconds: float) -> Any:
    @batch
    def model(x: Any) -> Any:
        import time

        time.sleep(seconds)
        return {"y": x}

    return model


def _crashing(requests: Any) -> Any:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def _scaling(hold: Path) -> Any:
    """Return a factory that blocks while a file exists."""

    def make() -> Any:
        import time

        while hold.exists():
            time.sleep(0.1)
        return _model(0.02)

    return make


class _Load:
    """Clients that send requests to the models until `stop`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopped = threading.Event()
        pauses = {name: pause for name, (_, pause) in MODELS.items()}
        pauses |= {_CRASHING: 1.0, _SCALING: 0.0}
        self._threads = [
            threading.Thread(target=self._send, args=(name, pause))
            for name, pause in pauses.items()
            if pause is not None
            for _ in range(3 if name in ("slow-ranker", _SCALING) else 1)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, name: str, pause: float) -> None:
        connection = Inference("http", self._address)
        rows = np.zeros((1, 8), np.float32)
        number = 0
        while not self._stopped.wait(pause):
            number += 1
            try:
                connection.infer(name, {"x": rows}, request_id=f"{name}-{number}")
            except InferenceServerException:
                continue  # the model crashed
        connection.close()

    def stop(self) -> None:
        """Stop the clients."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def _scene() -> Iterator[RunningDaemon]:
    """Yield a daemon that has served the load for a while."""
    hold = Path(tempfile.mkdtemp(prefix="pictures-")) / "hold"
    config = ModelConfig(max_batch_size=8)
    with RunningDaemon.start(management_address="127.0.0.1:0") as daemon:
        client = daemon.client
        for name, (seconds, _) in MODELS.items():
            client.register(_model(seconds), name, X, Y, config, progress=False)
        client.register(_crashing, _CRASHING, X, Y, config, progress=False)
        client.register(_scaling(hold), _SCALING, X, Y, config, factory=True, progress=False)
        load = _Load(daemon.http)
        hold.touch()
        scale = threading.Thread(target=partial(client.scale, _SCALING, 4, progress=False))
        scale.start()
        try:
            deadline = time.monotonic() + _LOAD_S
            while time.monotonic() < deadline:  # the charts start with the first request for them
                _fetch_view(client.status().management_urls[0])
                time.sleep(2)
            eventually(lambda: client.status().problems, "the crash loop is reported")
            yield daemon
        finally:
            hold.unlink()
            scale.join()
            load.stop()
            shutil.rmtree(hold.parent)


def _fetch_view(url: str) -> None:
    import urllib.request

    with urllib.request.urlopen(f"{url}/page/view.json", timeout=30) as answer:
        answer.read()


async def _capture_top(daemon: RunningDaemon, to: Path) -> None:
    app = TopApp(Feed(RuntimeDir(Path(daemon.config.runtime_dir or ""))), 2.0)
    async with app.run_test(size=_TERMINAL) as pilot:
        await asyncio.sleep(5)  # rates need two intervals
        await app.workers.wait_for_complete()
        await pilot.pause()
        to.write_text(app.export_screenshot(title="pytriton-daemon top"), encoding="utf-8")


def _capture_dashboard(daemon: RunningDaemon, folder: Path) -> None:
    """Capture the dashboard: on a desktop, with the crashing model open, and on a phone."""
    if CHROMIUM is None:
        raise SystemExit("chromium not found: apt-get install chromium")
    url = f"{daemon.client.status().management_urls[0]}/page/"
    token = RuntimeDir(Path(daemon.config.runtime_dir or "")).access_token()
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
        for name, (width, height), model in _PICTURES:
            window.resize(width, height)
            window.open("about:blank")
            window.open(f"{url}#{model}")
            window.run(f"document.getElementById('token').value = {token!r}")
            window.run("document.getElementById('token').dispatchEvent(new Event('change'))")
            eventually(partial(window.run, _IS_RENDERED), "the dashboard is rendered")
            window.picture(folder / name)


def labels(text: str, top_k: int = 3) -> list[str]:
    """Return the labels of a text.

    Args:
        text: the text
        top_k: maximum number of labels
    """
    return sorted({word.strip(".,").lower() for word in text.split()}, key=len)[: -top_k - 1 : -1]


def thumbnail(image: bytes, width: int = 128) -> bytes:
    """Return a smaller copy of an image."""
    return image[:width]


def _capture_docs(to: Path) -> None:
    """Capture the page of typed functions after a request was sent."""
    operation = "#operations-functions-labels"
    with (
        RunningDaemon.start() as daemon,
        tempfile.TemporaryDirectory() as profile,
        browser(Path(profile)) as window,
    ):
        for function in (labels, thumbnail):
            daemon.client.register(function, progress=False)
        window.resize(1000, 1440)
        window.open(f"http://{daemon.http}/docs")
        for selector, ready in _DOCS_STEPS:
            shown = f"document.querySelector('{operation} {selector}') !== null"
            eventually(partial(window.run, shown), f"{selector} is shown")
            window.run(f"document.querySelector('{operation} {selector}').click()")
            eventually(
                partial(window.run, ready.replace("OPERATION", operation)), "the step is done"
            )
        window.run("document.activeElement.blur()")
        window.picture(to)


def main() -> int:
    """Write the screenshots into a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    with _scene() as daemon:
        asyncio.run(_capture_top(daemon, folder / "top.svg"))
        _capture_dashboard(daemon, folder)
    _capture_docs(folder / "docs-page.png")
    print(f"wrote to {folder}: top.svg, page.png, page-phone.png, docs-page.png", file=sys.stderr)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TERM", "xterm-256color")
    sys.exit(main())
