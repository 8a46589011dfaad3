"""Pictures of `top` and of the page: a daemon with twelve models, one in a crash loop, one slow, one being scaled.

Run by scripts/tools/screenshots. `top` is drawn by Textual, the page by chromium (Debian's package).
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
#: Model -> seconds of a call, and of the pause between two requests; None: nobody asks it.
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
#: Whether the page has its charts and its events, and the open model, if there is one, why it is as it is.
_IS_DRAWN = (
    "document.querySelector('.charts path') !== null && document.querySelector('#event-list td') !== null"
    " && (document.getElementById('model').hidden || document.querySelector('.finding') !== null)"
)
#: Loads of the plots on the page.
_SHOWN_S = 45.0
_TERMINAL = (150, 34)
#: Pictures of the page: the file, the window, the model that is open.
_PICTURES = (("page.png", (1200, 1900), _CRASHING), ("page-phone.png", (390, 1700), ""))


#: What is clicked on the page of typed functions, and what is there afterwards.
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
    """Return a factory whose workers, but for the first ones, load for as long as a file is there."""

    def make() -> Any:
        import time

        while hold.exists():
            time.sleep(0.1)
        return _model(0.02)

    return make


class _Load:
    """Clients of all models, until `stop`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopped = threading.Event()
        pauses = {name: pause for name, (_, pause) in MODELS.items()}
        pauses |= {_CRASHING: 1.0, _SCALING: 0.0}
        self._threads = [
            threading.Thread(target=self._ask, args=(name, pause))
            for name, pause in pauses.items()
            if pause is not None
            for _ in range(3 if name in ("slow-ranker", _SCALING) else 1)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, name: str, pause: float) -> None:
        connection = Inference("http", self._address)
        rows = np.zeros((1, 8), np.float32)
        number = 0
        while not self._stopped.wait(pause):
            number += 1
            try:
                connection.infer(name, {"x": rows}, request_id=f"{name}-{number}")
            except InferenceServerException:
                continue  # of the one that crashes
        connection.close()

    def stop(self) -> None:
        """End them."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def _scene() -> Iterator[RunningDaemon]:
    """Yield a daemon in which all of it has gone on for a while."""
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
            watching = time.monotonic() + _SHOWN_S
            while time.monotonic() < watching:  # the page's plots begin when somebody looks
                _page_s_figures(client.status().management_urls[0])
                time.sleep(2)
            eventually(lambda: client.status().problems, "the crash loop is not told")
            yield daemon
        finally:
            hold.unlink()
            scale.join()
            load.stop()
            shutil.rmtree(hold.parent)


def _page_s_figures(url: str) -> None:
    import urllib.request

    with urllib.request.urlopen(f"{url}/page/view.json", timeout=30) as answer:
        answer.read()


async def _picture_of_top(daemon: RunningDaemon, to: Path) -> None:
    app = TopApp(Feed(RuntimeDir(Path(daemon.config.runtime_dir or ""))), 2.0)
    async with app.run_test(size=_TERMINAL) as pilot:
        await asyncio.sleep(5)  # two intervals: rates are there
        await app.workers.wait_for_complete()
        await pilot.pause()
        to.write_text(app.export_screenshot(title="pytriton-daemon top"), encoding="utf-8")


def _pictures_of_page(daemon: RunningDaemon, folder: Path) -> None:
    """Draw the page at a desk, with a model in a crash loop open, and on a phone."""
    if CHROMIUM is None:
        raise SystemExit("no chromium here: apt-get install chromium")
    url = f"{daemon.client.status().management_urls[0]}/page/"
    token = RuntimeDir(Path(daemon.config.runtime_dir or "")).access_token()
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
        for name, (width, height), model in _PICTURES:
            window.resize(width, height)
            window.open("about:blank")
            window.open(f"{url}#{model}")
            window.run(f"document.getElementById('token').value = {token!r}")
            window.run("document.getElementById('token').dispatchEvent(new Event('change'))")
            eventually(partial(window.run, _IS_DRAWN), "the page is drawn")
            window.picture(folder / name)


def labels(text: str, top_k: int = 3) -> list[str]:
    """Return the labels of a text.

    Args:
        text: what to label
        top_k: how many labels, the best first
    """
    return sorted({word.strip(".,").lower() for word in text.split()}, key=len)[: -top_k - 1 : -1]


def thumbnail(image: bytes, width: int = 128) -> bytes:
    """Return a smaller copy of an image."""
    return image[:width]


def _picture_of_docs(to: Path) -> None:
    """Draw the page of typed functions, with an operation that has been sent."""
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
            eventually(partial(window.run, ready.replace("OPERATION", operation)), "it is done")
        window.run("document.activeElement.blur()")
        window.picture(to)


def main() -> int:
    """Write the pictures into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    with _scene() as daemon:
        asyncio.run(_picture_of_top(daemon, folder / "top.svg"))
        _pictures_of_page(daemon, folder)
    _picture_of_docs(folder / "docs-page.png")
    print(
        f"written into {folder}: top.svg, page.png, page-phone.png, docs-page.png", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TERM", "xterm-256color")
    sys.exit(main())
