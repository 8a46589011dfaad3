"""What `pytriton-daemon status` says of tritonserver."""

from __future__ import annotations

import msgspec
import pytest
from support.fakes.fake_dispatcher import status

from pytriton.cli.tables import print_status
from pytriton.ipc import messages


@pytest.mark.parametrize(
    ("binary", "front"),
    [
        ("/c/native-front/1f/pytriton-front", ", native front\n"),
        ("/s/bin/tritonserver", ", NVIDIA's front\n"),
        ("", " 2.51.0\n"),
    ],
)
def test_the_front_is_named(capsys: pytest.CaptureFixture[str], binary: str, front: str) -> None:
    said = status()
    server = msgspec.structs.replace(said.server, binary=binary, version="2.51.0", pid=7)
    print_status(msgspec.structs.replace(said, server=server))
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "tritonserver" in one]
    assert f"{line.rstrip()}\n".endswith(front)


def test_what_a_callable_says_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    end = "RuntimeError: \x1b[2J\x07"
    one = messages.InstanceInfo(0, "backoff", None, last_exit=end)
    models = [
        messages.ModelInfo("m", 1, "unready", [one]),
        messages.ModelInfo("kept", 1, "failed", [], error=end),
    ]
    print_status(msgspec.structs.replace(status(), models=models, problems=[end]))
    text = capsys.readouterr().out
    assert text.count(r"RuntimeError: \x1b[2J\x07") == 3
    assert "\x1b" not in text
