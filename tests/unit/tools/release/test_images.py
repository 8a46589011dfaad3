"""A Dockerfile is played step by step: what is copied, run and set, and how its command ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from release import images
from release.tool_runner import ReleaseError

#: Stands for the daemon: healthy once it runs, ended by SIGTERM with the code in its environment.
_PROGRAM = f"""#!{sys.executable}
import os, pathlib, signal, sys
mark = pathlib.Path(os.environ["PYTRITON_DAEMON_RUNTIME_DIR"])
if sys.argv[1] == "status":
    sys.exit(not mark.exists())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(os.environ["CODE"])))
mark.write_text(" ".join(sys.argv[1:]))
signal.pause()
"""
_DOCKERFILE = """ARG BASE=python
FROM ${BASE} AS build
RUN apt-get update
COPY . /source
ENV CODE=%d PATH=/opt/pytriton/bin:$PATH
RUN mkdir -p /opt/pytriton/bin \\
    && cp /source/pytriton/program /opt/pytriton/bin/program
FROM ${BASE}
COPY --from=build /opt/pytriton /opt/pytriton
RUN useradd me
USER 10001
HEALTHCHECK --interval=20s CMD ["program", "status"]
ENTRYPOINT ["program", "start"]
CMD ["--more"]
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    (folder / "pytriton" / "__pycache__").mkdir(parents=True)
    (folder / "pytriton" / "__pycache__" / "a.pyc").write_text("")
    (folder / "pytriton" / "program").write_text(_PROGRAM)
    (folder / "pytriton" / "program").chmod(0o755)
    (folder / "secret").write_text("")
    (folder / "Dockerfile.dockerignore").write_text(
        "# what is taken\n*\n!pytriton\n**/__pycache__\n"
    )
    return folder


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_PAUSE_S", 0.02)


def play(context: Path, code: int = 0) -> list[str]:
    (context / "Dockerfile").write_text(_DOCKERFILE % code)
    root = context.with_name("root")
    root.mkdir()
    return list(images.play(context / "Dockerfile", context, root))


def test_a_dockerfile_is_played(context: Path) -> None:
    said = play(context)
    assert said[0] == "left out: apt-get update"
    assert said[1] == "COPY . /source: 1 files"
    assert said[-1].endswith("the health check passed, and SIGTERM ended it with code 0")
    root = context.with_name("root")
    assert [path.name for path in (root / "source").iterdir()] == ["pytriton"]
    assert (root / "run").read_text().startswith("start --more --http-address=127.0.0.1")


def test_a_disorderly_exit_is_reported(context: Path) -> None:
    with pytest.raises(ReleaseError, match="ended with code 3 after SIGTERM"):
        play(context, code=3)


def test_a_daemon_that_never_gets_healthy_is_reported(context: Path) -> None:
    (context / "pytriton" / "program").write_text("#!/bin/sh\necho no port is free; exit 1\n")
    with pytest.raises(ReleaseError, match=r"never passed:\nno port is free"):
        play(context)


def test_a_step_that_fails_is_reported(context: Path) -> None:
    (context / "pytriton" / "program").unlink()
    with pytest.raises(ReleaseError, match=r"RUN mkdir -p .* failed"):
        play(context)
