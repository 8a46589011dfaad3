"""The examples of docs/how-to/pytriton.md run as written, except for the ports."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

from support.scripts import Script

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n)?```python\n(.*?)```", re.DOTALL)
_BODY = re.compile(r"-d '(\{.*?\})'")
DOCUMENT = (ROOT / "docs" / "how-to" / "pytriton.md").read_text(encoding="utf-8")
LOG = "import logging, sys\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"


def blocks(text: str, part: str) -> list[str]:
    """Return the examples to run that contain `part`."""
    return [code for skipped, code in _BLOCK.findall(text) if not skipped and part in code]


def test_the_serving_script_works(tmp_path: Path) -> None:
    """It answers the curl request beside it until Ctrl-C."""
    (code,) = blocks(DOCUMENT, "triton.serve()")
    body = _BODY.findall(DOCUMENT)[0]
    with Script(LOG + code, tmp_path) as script:
        script.wait_for("Press CTRL+C")
        found = re.search(r"POST (http://\S+)/`", script.said())
        assert found is not None
        with urllib.request.urlopen(found[1], body.encode(), timeout=60) as response:
            answer = json.loads(response.read())
        assert answer["outputs"][0]["data"] == [3.0, 5.0, 7.0]
        assert script.end(signal.SIGINT) == 0


def test_a_callable_shares_state_with_the_script(tmp_path: Path) -> None:
    (code,) = blocks(DOCUMENT, 'isolation="thread"')
    ask = """
from pytriton.client import ModelClient
with ModelClient(triton.http_url, "counter") as client:
    client.infer_batch(np.ones((3, 1), np.float32))
print("SEEN", counter.seen)
"""
    with Script(code + ask, tmp_path) as script:
        assert script.wait_gone() == 0  # at its end it stops the server by itself
        assert "SEEN 3" in script.said()


#: Unbuffered, a text and its end are written one after the other, and a line of the daemon's log may come between.
_WHOLE_LINES = """
import sys

def print(*what):
    sys.stdout.write(" ".join(map(str, what)) + "\\n")

"""


def test_documented_differences_from_pytriton_hold(tmp_path: Path) -> None:
    """All examples form one script; `print(...)  # text` has to print this text."""
    document = (ROOT / "docs" / "how-to" / "migrating-from-pytriton.md").read_text(encoding="utf-8")
    code = "\n".join(blocks(document, ""))
    reported = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(reported) == 5
    with Script(_WHOLE_LINES + code, tmp_path) as script:
        assert script.wait_gone() == 0, script.said()
        said = script.said().splitlines()
    assert [line for line in said if line in reported] == reported, said
