"""Every curl command of README.md and docs/ gets the documented response from the documented models.

test_tutorials.py runs those of the tutorials. (test_triton_class_doc.py also sends the curl command of
docs/how-to/pytriton.md to the script beside it.)
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documentation import tutorials
from support.real_daemon import FRONT, RunningDaemon

from pytriton.model_config import ModelConfig, Tensor

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: A command, over lines that end with `\` or `|`; what follows up to the next one is what it prints.
_COMMAND = re.compile(r"^(?:\$ )?((?:.*[\\|]\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_CURL = re.compile(r"\bcurl ")
#: The OpenAI frontend, which the daemon of these tests does not have.
_OTHERS = re.compile(r"(?:127\.0\.0\.1|localhost):8003/")
_ADDRESS = re.compile(r"^(?:http://)?(?:127\.0\.0\.1|localhost):8000(/.*)$")


@dataclass(frozen=True)
class Command:
    """A curl command of a document.

    Attributes:
        document: path of the document, relative to the checkout
        text: the command, including what is piped into it
        shown: its documented output, if any
    """

    document: str
    text: str
    shown: str

    def __str__(self) -> str:
        return f"{self.document}: {self.path}"

    @property
    def words(self) -> list[str]:
        """The arguments, as a shell splits them."""
        return shlex.split(_CURL.split(self.text, 1)[1])

    @property
    def path(self) -> str:
        """The path of the URL."""
        (path,) = [found[1] for found in map(_ADDRESS.match, self.words) if found]
        return path

    def option(self, name: str) -> str | None:
        """Return the value of an option."""
        words = self.words
        return words[words.index(name) + 1] if name in words else None

    def send(self, daemon: RunningDaemon) -> str:
        """Send the request that curl would send to a daemon of the tests; return the response."""
        body = self.option("-d")
        data = None if body is None else body.encode()
        request = urllib.request.Request(f"http://{daemon.http}{self.path}", data)
        if self.option("-H") == "@-":
            piped = self.text.rpartition("|")[0]
            header = subprocess.run(
                ["bash", "-c", piped], check=True, capture_output=True, text=True
            )
            request.add_header(*header.stdout.split(": "))
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: str = response.read().decode()
        return answer


def _commands() -> list[Command]:
    found = []
    elsewhere = tutorials.pages(ROOT)
    paths = [path for path in (ROOT / "docs").glob("**/*.md") if path not in elsewhere]
    for path in (README, *sorted(paths)):
        for block in _FENCED.findall(path.read_text(encoding="utf-8")):
            found += [
                Command(str(path.relative_to(ROOT)), *match)
                for match in _COMMAND.findall(block)
                if _CURL.search(match[0]) and not _OTHERS.search(match[0])
            ]
    return found


COMMANDS = {str(command): command for command in _commands()}


def _python(path: Path, part: str) -> str:
    found: list[str] = _PYTHON.findall(path.read_text(encoding="utf-8"))
    (code,) = [code for code in found if part in code]
    return code


@pytest.fixture(scope="module")
def served(
    daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    """A daemon with the models of README.md and docs/how-to/registering.md, registered by a script as described."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTRITON_DAEMON_RUNTIME_DIR", daemon.config.runtime_dir)
        # `pytriton-daemon` is in the folder of this interpreter.
        folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
        environment.setenv("PATH", os.pathsep.join(folders))
        script = tmp_path_factory.mktemp("readme") / "linear.py"
        script.write_text(_python(README, "connect().register("))
        done = subprocess.run(
            [sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=100
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"http://{daemon.http}/v2/models/linear\n"
        count = _python(ROOT / "docs" / "how-to" / "registering.md", "def count(requests)")
        names: dict[str, Any] = {"np": np, "Tensor": Tensor, "ModelConfig": ModelConfig}
        code = compile(count, "docs/how-to/registering.md", "exec")
        exec(code, {**names, "client": daemon.client})
        yield daemon


def test_every_curl_command_is_covered() -> None:
    """If you add one to a document, also add its expected response here."""
    assert list(COMMANDS) == [
        "README.md: /predict",
        "README.md: /v2/models/linear/infer",
        "docs/how-to/models-from-other-tools.md: /churn",
        "docs/how-to/pytriton.md: /v2/models/linear/infer",
        "docs/how-to/registering.md: /v2/models/count/generate_stream",
        "docs/how-to/web-api.md: /predict",
        "docs/operations/security.md: /v2/models/linear/stats",
    ]


def test_inference(served: RunningDaemon) -> None:
    """The response is literally the documented one."""
    first = COMMANDS["README.md: /v2/models/linear/infer"]
    assert json.loads(first.shown)["outputs"][0]["data"] == [3, 5, 7]
    assert first.send(served) == first.shown.rstrip("\n")
    second = COMMANDS["docs/how-to/pytriton.md: /v2/models/linear/infer"]
    assert second.send(served) == first.shown.rstrip("\n")


@pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")
def test_a_typed_function(served: RunningDaemon, tmp_path: Path) -> None:
    """The documented function, in the documented file."""
    (tmp_path / "app.py").write_text(_python(README, "def predict("))
    command = ["pytriton-daemon", "register", "app.py:predict"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert _python(ROOT / "docs/how-to/web-api.md", "def predict(text: str") == _python(
        README, "def predict("
    )
    for document in ("README.md", "docs/how-to/web-api.md"):
        one = COMMANDS[f"{document}: /predict"]
        assert one.send(served) == one.shown.rstrip("\n")


def test_the_shell_registers_the_scripts_callable(served: RunningDaemon, tmp_path: Path) -> None:
    """`pytriton-daemon register linear:infer_fn`, as documented, replaces what the script registered."""
    (tmp_path / "linear.py").write_text(_python(README, "connect().register("))
    command = ["pytriton-daemon", "register", "linear:infer_fn", "--replace"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    (linear,) = [model for model in served.client.models() if model.name == "linear"]
    assert len(linear.info().instances) == 2


def test_generate_stream(served: RunningDaemon) -> None:
    answer = COMMANDS["docs/how-to/registering.md: /v2/models/count/generate_stream"].send(served)
    events = [json.loads(line[len("data: ") :]) for line in answer.splitlines() if line]
    assert [event["i"] for event in events] == [0, 1, 2]


def test_statistics_with_the_token(served: RunningDaemon) -> None:
    command = COMMANDS["docs/operations/security.md: /v2/models/linear/stats"]
    (stats,) = json.loads(command.send(served))["model_stats"]
    assert stats["name"] == "linear"
