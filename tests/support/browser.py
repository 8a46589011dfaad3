"""Drive a real browser: chromium, over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.real_daemon import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
#: Keys other than letters: code, and the text that they insert.
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "Backspace": (8, "")}


class Browser:
    """One window. Everything is asked over two pipes, JSON texts that end with a NUL.

    Attributes:
        complaints: errors, warnings and policy violations from the console and the browser itself.
    """

    def __init__(self, writes: int, reads: int) -> None:
        self._writes, self._reads = os.fdopen(writes, "wb", 0), os.fdopen(reads, "rb")
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self._ask(f"{domain}.enable")

    def close(self) -> None:
        """Close the pipes, which ends the browser."""
        self._writes.close()
        self._reads.close()

    def open(self, url: str) -> None:
        """Navigate to a page; return when its script has started."""
        self._ask("Page.navigate", url=url)
        eventually(lambda: self.run("document.readyState") == "complete", "the page loads")

    def run(self, script: str) -> Any:
        """Evaluate an expression and return its value; promises are awaited."""
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys as a user would; "Shift+Tab" moves the focus back."""
        for key in keys:
            name = key.removeprefix("Shift+")
            code, text = _KEYS.get(name, (0, name))
            event = {"key": name, "code": name, "windowsVirtualKeyCode": code}
            more = {"modifiers": 8} if key != name else {}
            kind = "keyDown" if text else "rawKeyDown"
            self._ask("Input.dispatchKeyEvent", type=kind, text=text, **event, **more)
            self._ask("Input.dispatchKeyEvent", type="keyUp", **event, **more)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window; below 500 pixels, emulate a phone."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip

    def ignore_certificate_errors(self) -> None:
        """Accept certificates that no known authority has signed."""
        self._ask("Security.setIgnoreCertificateErrors", ignore=True)

    def picture(self, to: Path) -> None:
        """Write a screenshot of the window."""
        taken = self._ask("Page.captureScreenshot", format="png")
        to.write_bytes(base64.b64decode(taken["data"]))

    def roles(self) -> list[tuple[str, str]]:
        """Return the role and name of everything that a screen reader announces."""
        nodes = self._ask("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(one["role"]["value"]), str(one.get("name", {}).get("value", "")))
            for one in nodes
            if not one["ignored"]
        ]

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        question = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            question["sessionId"] = self._session
        self._writes.write(json.dumps(question).encode() + b"\0")
        while True:
            said = json.loads(self._next())
            if said.get("id") == self._number:
                assert "error" not in said, said["error"]
                return said["result"]
            self._note(said)

    def _next(self) -> bytes:
        text = bytearray()
        while (one := self._reads.read(1)) != b"\0":
            assert one, "the browser has ended"
            text += one
        return bytes(text)

    def _note(self, said: dict[str, Any]) -> None:
        reported = said.get("params", {})
        if said.get("method") == "Log.entryAdded":
            entry = reported["entry"]
            self.complaints.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
        elif said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(reported["exceptionDetails"]))
        elif said.get("method") == "Runtime.consoleAPICalled" and reported["type"] != "log":
            self.complaints.append(f"{reported['type']}: {reported['args']}")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Open a browser window that keeps nothing beyond the folder."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    # Above the numbers that the shell maps them to: chromium reads 3 and writes 4.
    ends = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (theirs_in, theirs_out)]
    os.close(theirs_in)
    os.close(theirs_out)
    moved = 'exec 3<&$0 4>&$1; shift; exec "$@"'
    command = [str(CHROMIUM), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        ["bash", "-c", moved, *map(str, ends), *command],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for one in ends:
        os.close(one)
    made = None
    try:
        made = Browser(ours_out, ours_in)
        yield made
    finally:
        if made is not None:
            made.close()
        process.terminate()
        process.wait(30)
