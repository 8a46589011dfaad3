"""The daemon's image in containers, as users run it: read-only, with a volume, killed, replaced, as any user.

The image is built beforehand, because that takes minutes and the network; with a model in it, from the tutorial:

    podman build --format docker --ignorefile deploy/images/Dockerfile.dockerignore --file deploy/images/Dockerfile \\
      --tag pytriton-daemon:0.1.0 .
    podman build --format docker --tag linear:1 examples/tutorials/containers
    PYTRITON_TESTS_IMAGE=linear:1 scripts/test --no-lint tests/integration/daemon/test_image.py
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.real_daemon import eventually

ASKED = "PYTRITON_TESTS_IMAGE"
IMAGE = os.environ.get(ASKED, "")
_REASON = (
    "podman is not installed"
    if IMAGE
    else f"needs an image: see {__name__.rpartition('.')[2]}.py, {ASKED}"
)
pytestmark = [
    pytest.mark.skipif(not IMAGE or not shutil.which("podman"), reason=_REASON),
    pytest.mark.timeout(400),
]
#: Where the image persists registrations, and where the control socket is if other containers are to use it.
STATE, RUNTIME = "/var/lib/pytriton", "/run/pytriton"
_READ_ONLY = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
_COMMAND_S, _READY_S = 300.0, 200.0
_numbers = itertools.count(1)

#: Print the status and the body of a response.
_FETCH = """
import sys, urllib.error, urllib.request
try:
    response = urllib.request.urlopen(sys.argv[1], sys.argv[2].encode() or None, timeout=60)
except urllib.error.HTTPError as error:
    response = error
except OSError as error:
    sys.exit(str(error))
print(response.status, response.read().decode())
"""
_BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [4.0]}]})


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["podman", *arguments], check=False, capture_output=True, text=True, timeout=_COMMAND_S
    )
    assert not check or done.returncode == 0, f"podman {arguments[0]}: {done.stdout}{done.stderr}"
    return done


class Container:
    """A container of the image without a network."""

    def __init__(self, *options: str, command: tuple[str, ...] = ()) -> None:
        self.name = f"pytriton-test-{os.getpid()}-{next(_numbers)}"
        podman("run", "--detach", "--name", self.name, "--network=none", *options, IMAGE, *command)

    def execute(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.name, *command, check=check)

    def fetch(self, path: str, body: str = "") -> str:
        url = f"http://127.0.0.1:8000/v2/{path}"
        return self.execute("python", "-c", _FETCH, url, body, check=False).stdout

    def wait_until_ready(self) -> None:
        eventually(lambda: self.fetch("health/ready").startswith("200"), self.logs, _READY_S)

    def answers(self) -> bool:
        return '"data":[9.0]' in self.fetch("models/linear/infer", _BODY)

    def is_healthy(self) -> bool:
        """Run the image's health check."""
        return podman("healthcheck", "run", self.name, check=False).returncode == 0

    def logs(self) -> str:
        done = podman("logs", self.name)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(podman("inspect", self.name).stdout)[0]["State"]
        return state

    def stop(self) -> None:
        podman("stop", "--time=60", self.name)

    def remove(self) -> None:
        podman("rm", "--force", "--time=0", self.name)


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    """Containers to remove after the test, whatever state they are in."""
    started: list[Container] = []
    yield started
    for container in started:
        container.remove()


@pytest.fixture
def volumes() -> Iterator[tuple[str, str]]:
    """Two empty volumes: for registrations, and for the control socket."""
    names = [f"pytriton-test-{os.getpid()}-{next(_numbers)}" for _ in range(2)]
    for name in names:
        podman("volume", "create", name)
    yield names[0], names[1]
    podman("volume", "rm", "--force", *names)


@pytest.mark.parametrize("user", ["10001", "12345:0"], ids=["", "any-user"])
def test_a_registration_survives_its_container(
    containers: list[Container], volumes: tuple[str, str], user: str
) -> None:
    """It is made in another container, over the control socket in a volume; kill, restart and an upgrade keep it."""
    state, runtime = volumes
    shared = (
        f"--user={user}",
        f"--volume={runtime}:{RUNTIME}",
        f"--env=PYTRITON_DAEMON_RUNTIME_DIR={RUNTIME}/daemon",
    )
    options = (*_READ_ONLY, "--tmpfs=/tmp", "--memory=512m", f"--volume={state}:{STATE}", *shared)
    first = Container(*options)
    containers.append(first)
    first.wait_until_ready()
    client = Container(
        *shared, "--entrypoint=pytriton-daemon", command=("register", "linear:linear")
    )
    containers.append(client)
    assert podman("wait", client.name).stdout.strip() == "0", client.logs()
    assert first.answers()
    eventually(first.is_healthy, first.logs)

    podman("kill", "--signal=KILL", first.name)
    podman("wait", first.name)
    podman("start", first.name)
    first.wait_until_ready()
    assert first.answers()

    first.stop()
    assert (first.state()["ExitCode"], first.state()["OOMKilled"]) == (0, False)
    assert "daemon stopped" in first.logs()
    second = Container(*options)
    containers.append(second)
    second.wait_until_ready()
    assert second.answers()


def test_a_directory_that_cannot_be_written_is_named(containers: list[Container]) -> None:
    container = Container(*_READ_ONLY, "--tmpfs=/tmp")
    containers.append(container)
    assert podman("wait", container.name).stdout.strip() == "2"
    assert f"cannot use the state directory {STATE}/state" in container.logs()
