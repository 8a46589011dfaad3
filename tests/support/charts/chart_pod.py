"""Run a pod of the chart by hand: volumes are folders, containers are processes, in the kubelet's order."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytriton._host.settings.declarations import ENV_OWNER
from support.charts.chart import Object, only, pod_of
from support.real_daemon import eventually

_LONG_S = 120.0


class Pod:
    """The pod in the rendered objects; its daemon listens at the addresses given to the chart."""

    def __init__(self, objects: list[Object], secrets: Mapping[str, Path]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ptd-"))  # short, because it contains sockets
        self.spec = pod_of(objects)
        (self.container,) = self.spec["containers"]
        for volume in self.spec["volumes"]:
            self._make(volume, objects, secrets)
        self.said = self._folder / "said"
        self.process: subprocess.Popen[bytes] | None = None

    def _make(self, volume: Object, objects: list[Object], secrets: Mapping[str, Path]) -> None:
        place = self._folder / volume["name"]
        place.mkdir()
        if "emptyDir" in volume:
            place.chmod(0o777)
        elif "configMap" in volume:
            source = volume["configMap"]
            data = only(objects, "ConfigMap", source["name"])["data"]
            items = source.get("items", [{"key": key, "path": key} for key in data])
            _project(place, {one["path"]: data[one["key"]] for one in items})
        else:
            files = secrets[volume["secret"]["secretName"]].iterdir()
            _project(place, {one.name: one.read_text() for one in files})

    def run_init_containers(self) -> None:
        """Run each init container to completion.

        Raises:
            AssertionError: a container failed; has its output.
        """
        for container in self.spec["initContainers"]:
            done = self.run(container["command"], container)
            assert done.returncode == 0, f"{container['name']}: {done.stdout}"

    def start(self) -> None:
        """Start the daemon's container."""
        with open(self.said, "ab") as said:
            self.process = subprocess.Popen(
                self._placed(self.container["command"], self.container),
                stdout=said,
                stderr=said,
                cwd=self._folder_of(self.container),
                env=self._environment(self.container),
            )

    def run(
        self, command: list[str], container: Object | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as `kubectl exec`, a probe or a hook would."""
        container = container or self.container
        return subprocess.run(
            self._placed(command, container),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_LONG_S,
            cwd=self._folder_of(container),
            env=self._environment(container),
        )

    def probe(self, kind: str) -> bool:
        """Return whether a probe ("startup", "readiness", "liveness") succeeds now, by the kubelet's rules."""
        probe = self.container[f"{kind}Probe"]
        if "exec" in probe:
            return self.run(probe["exec"]["command"]).returncode == 0
        get = probe["httpGet"]
        assert get["scheme"] == "HTTP"
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port(get["port"]), timeout=_LONG_S
        )
        try:
            connection.request("GET", get["path"])
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def wait_for(self, kind: str) -> None:
        """Wait until a probe succeeds."""

        def succeeds() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.said.read_text()
            return self.probe(kind)

        eventually(succeeds, lambda: f"{kind}: {self.said.read_text()[-5000:]}", _LONG_S)

    def port(self, name: str) -> int:
        """Return the number of a named port of the container."""
        (port,) = [one["containerPort"] for one in self.container["ports"] if one["name"] == name]
        return int(port)

    def __enter__(self) -> Pod:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_LONG_S)
            finally:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _environment(self, container: Object) -> dict[str, str]:
        own = {one["name"]: self._place(one["value"], container) for one in container["env"]}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, ENV_OWNER: str(os.getpid()), **own}

    def _folder_of(self, container: Object) -> str:
        return self._place(container.get("workingDir", str(self._folder)), container)

    def _placed(self, command: list[str], container: Object) -> list[str]:
        return [self._place(word, container) for word in command]

    def _place(self, text: str, container: Object) -> str:
        """Replace the container's mount point with the volume's folder."""
        for mount in container["volumeMounts"]:
            if mount["name"] not in ("tmp", "shm"):
                folder = str(self._folder / mount["name"])
                text = re.sub(rf"(?<![\w/.-]){mount['mountPath']}(?=/|$|\s)", folder, text)
        return text


def _project(place: Path, files: Mapping[str, str]) -> None:
    """Write files as the kubelet does: in a hidden folder behind links, so that all change atomically."""
    hidden = place / "..2026_01_01"
    for path, text in files.items():
        file = hidden / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o440)
    (place / "..data").symlink_to(hidden.name)
    for name in sorted({path.partition("/")[0] for path in files}):
        (place / name).symlink_to(f"..data/{name}")
