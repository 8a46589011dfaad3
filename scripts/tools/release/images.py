"""Plays a Dockerfile where no engine builds images: its steps run below a folder that stands for the image's root.

```
checkout ──.dockerignore──▶ COPY ──▶ ROOT/source ──RUN──▶ ROOT/opt/pytriton ──ENTRYPOINT, CMD──▶ HEALTHCHECK
```

Paths of the image are exchanged for paths below that folder. Steps that take another root or another user (apt-get,
useradd, USER) are named and left out: the packages of this machine stand for those of the base image.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from release.tool_runner import ReleaseError, run

#: Folders of the images: whatever a step says of them is meant below the folder that stands for the root.
_FOLDERS = re.compile(r"(?<![\w./}-])/(source|wheels|opt/pytriton|home/server)\b")
_LEFT_OUT = ("apt-get", "useradd")
#: How long the daemon of an image may take until its health check passes, seconds.
_START_S = 120.0
#: Between two health checks, seconds.
_PAUSE_S = 1.0


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: name and the rest, lines joined, without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in whole.splitlines() if line.strip())
    return [(name.upper(), rest.strip()) for name, rest in pairs]


def play(dockerfile: Path, context: Path, root: Path) -> Iterator[str]:
    """Run the steps of a Dockerfile, then the image's command until its health check passes; yield what was done.

    Args:
        dockerfile: its .dockerignore lies beside it
        context: the folder that an engine would be given
        root: an empty folder, which stands for the image's root

    Raises:
        ReleaseError: a step failed, or the daemon did not become healthy, or did not end in order.
    """
    image: dict[str, str] = {}
    python = Path(sys.executable).parent
    variables = {"PATH": f"{python}:{os.environ['PATH']}", "HOME": str(root), "PYTHONPATH": ""}
    for name, rest in instructions(dockerfile):
        if name == "RUN" and any(word in rest for word in _LEFT_OUT):
            yield f"left out: {rest}"
        elif name == "RUN":
            run(f"RUN {rest}", ["sh", "-ec", _below(rest, root)], variables, root)
            yield f"RUN {rest}"
        elif name == "ENV":
            variables |= _assignments(_below(rest, root), variables)
        elif name == "COPY" and rest.split()[0] == ".":
            count = _copy(context, dockerfile, root / rest.split()[1].lstrip("/"))
            yield f"COPY {rest}: {count} files"
        else:
            image[name] = rest
    yield _start(image, variables, root)


def _below(text: str, root: Path) -> str:
    return _FOLDERS.sub(lambda match: f"{root}/{match[1]}", text)


def _assignments(text: str, variables: dict[str, str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {
        name: re.sub(r"\$(\w+)", lambda match: variables.get(match[1], ""), value)
        for name, _, value in pairs
    }


def _copy(context: Path, dockerfile: Path, target: Path) -> int:
    """Copy what the .dockerignore lets through, as links where that can be; return how many files."""
    lines = Path(f"{dockerfile}.dockerignore").read_text().splitlines()
    taken = [line[1:] for line in lines if line.startswith("!")]
    refused = [line for line in lines if line and not line.startswith(("!", "#", "*"))] + [
        line[3:] for line in lines if line.startswith("**/")
    ]

    def ignore(folder: str, names: list[str]) -> list[str]:
        return [one for one in names if any(fnmatch(one, pattern) for pattern in refused)]

    target.mkdir(parents=True)
    for name in taken:
        if (context / name).is_dir():
            shutil.copytree(context / name, target / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(context / name, target / name)
    return sum(path.is_file() for path in target.rglob("*"))


def _start(image: dict[str, str], variables: dict[str, str], root: Path) -> str:
    """Run an image's command on free ports until its health check passes, and stop it."""
    command = json.loads(image["ENTRYPOINT"]) + json.loads(image["CMD"])
    endpoints = ("http", "grpc", "metrics", "openai")
    ports = [f"--{name}-port=0" for name in endpoints]
    addresses = [f"--{name}-address=127.0.0.1" for name in endpoints]
    check = json.loads(image["HEALTHCHECK"].partition("CMD ")[2])
    environment = {**os.environ, **variables, "PYTRITON_DAEMON_RUNTIME_DIR": str(root / "run")}
    environment["PYTRITON_DAEMON_STATE_DIR"] = str(root / "state")
    program = shutil.which(command[0], path=variables["PATH"])
    if program is None:
        raise ReleaseError(f"the image has no {command[0]} on its PATH")
    log = root / "output"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [program, *command[1:], *addresses, *ports],
            cwd=root, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_until_healthy([program, *check[1:]], environment, daemon, log)
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(_START_S)
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
    if code != 0:
        raise ReleaseError(
            f"the daemon ended with code {code} after SIGTERM:\n{log.read_text()[-2000:]}"
        )
    return f"{' '.join(command)}: the health check passed, and SIGTERM ended it with code 0"


def _wait_until_healthy(
    check: list[str], environment: dict[str, str], daemon: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + _START_S
    while subprocess.run(check, env=environment, capture_output=True, check=False).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise ReleaseError(f"the health check never passed:\n{log.read_text()[-2000:]}")
        time.sleep(_PAUSE_S)  # as an engine does
