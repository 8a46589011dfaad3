"""The daemon as a service of a real systemd, running as PID 1 of a Debian in its own namespaces.

Takes minutes and needs root: PYTRITON_SYSTEMD_TESTS=1 scripts/test --no-lint tests/integration/daemon/test_systemd.py
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest
from release.state import next_patch
from support.packages import build, copy_sources
from support.real_daemon import eventually
from support.systemd.debian import PROGRAM, USER, Machine, booted, why_not

from pytriton._host.install.cache import cache_dir
from pytriton._host.install.server_runtime import choice_of, find_or_install_server
from pytriton._host.settings.declarations import DaemonConfig

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "a machine can be booted"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("systemd"),  # one machine is enough
]
SERVICE, SOCKET = "pytriton-daemon.service", "pytriton-daemon.socket"
SETTINGS = "/etc/pytriton-daemon/pytriton-daemon.toml"
#: This machine's cache, with tritonserver in it.
CACHE = "/opt/cache"
#: An environment with a release, and the folder with the releases.
VENV, INDEX = "/opt/service", "/opt/index"
#: Debian's own Python, for services that may not enter root's home, where ours may lie.
DEBIANS_PYTHON = "/usr/bin/python3"
SITE = Path(sys.prefix, "lib", f"python3.{sys.version_info[1]}", "site-packages")

_REGISTER = """
import numpy as np
from pytriton.daemon import connect
from pytriton.model_config import ModelConfig, Tensor

def double(requests):
    for request in requests:
        if float(request["x"][0, 0]) < 0:
            raise ValueError("x is negative")
    return [{"y": request["x"] * 2} for request in requests]

tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy"]
connect().register(double, "double", tensors[:1], tensors[1:], ModelConfig(max_batch_size=8), progress=False)
"""

#: Two clients until standard input ends: one with new connections, one that keeps its own; prints what each got.
_LOAD = """
import http.client, json, sys, threading

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2.0]}]})
stopped = threading.Event()

def ask(connection):
    connection.request("POST", "/v2/models/double/infer", BODY, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    return "answered" if response.status == 200 and '"data":[4.0]' in text else f"{response.status} {text[:100]}"

def load(kept, counts):
    connection = None
    while not stopped.is_set():
        fresh = connection is None
        connection = connection or http.client.HTTPConnection("127.0.0.1", 8000, timeout=100)
        try:
            what = ask(connection)
        except OSError as error:
            connection = None
            if not fresh and isinstance(error, ConnectionError):
                continue  # the server has closed it: ask again on another one, as clients do
            what = type(error).__name__
        counts[what] = counts.get(what, 0) + 1
        if not kept and connection is not None:
            connection.close()
            connection = None
        if counts.get("answered") == 1:
            print("answered", flush=True)

told = [{}, {}]
threads = [threading.Thread(target=load, args=(bool(kept), told[kept])) for kept in (0, 1)]
for thread in threads: thread.start()
sys.stdin.read()
stopped.set()
for thread in threads: thread.join()
print(json.dumps(told))
"""

#: A client that polls as load balancers and dashboards do, until standard input ends.
_POLL = """
import http.client, sys, threading

def poll():
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=1)
        try:
            connection.request("GET", "/v2/health/ready")
            connection.getresponse().read()
        except OSError:
            pass
        finally:
            connection.close()

threading.Thread(target=poll, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    find_or_install_server(choice_of(DaemonConfig()), print)
    with booted({cache_dir(): CACHE}) as machine:
        for name, text in {"register": _REGISTER, "load": _LOAD, "poll": _POLL}.items():
            machine.write(f"/opt/scripts/{name}.py", text)
        # Debian's Python finds what ours has.
        found = f"{SITE}\nimport site; site.addsitedir({str(SITE)!r})\n"
        machine.write("/usr/local/lib/python3.11/dist-packages/checkout.pth", found)
        machine.run("chmod", "--recursive", "a+rX", "/opt/scripts", "/usr/local/lib/python3.11")
        yield machine


@pytest.fixture
def service(machine: Machine) -> Iterator[Service]:
    service = Service(machine)
    yield service
    service.purge()


class Service:
    """The daemon's service, as an administrator controls it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.program = [str(PROGRAM)]

    def install(self, *flags: str, drop_in: str = "") -> str:
        """Write the units and reload systemd; return the output."""
        command = ("service", "install", "--systemd", f"--run-as={USER}", f"--cache-dir={CACHE}")
        done = self.machine.run(*self.program, *command, *flags)
        if drop_in:
            self.machine.write(f"/etc/systemd/system/{SERVICE}.d/test.conf", drop_in)
        self.machine.systemctl("daemon-reload")
        return done.stderr

    def start(self) -> None:
        self.machine.systemctl("enable", "--now", "pytriton-daemon")

    def settings(self, text: str) -> None:
        self.machine.write(SETTINGS, text)

    def register(self, user: str = USER) -> None:
        """Register a model from a login shell."""
        self.machine.run(sys.executable, "/opt/scripts/register.py", user=user)

    def ask(self, number: float = 2.0) -> str:
        """Return the model's JSON response to a request."""
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}]}
        code = (
            "import sys, urllib.request, urllib.error\n"
            "request = urllib.request.Request(sys.argv[1], sys.argv[2].encode())\n"
            "try: print(urllib.request.urlopen(request, timeout=60).read().decode())\n"
            "except urllib.error.HTTPError as error: print(error.read().decode())\n"
        )
        url = "http://127.0.0.1:8000/v2/models/double/infer"
        return self.machine.run(DEBIANS_PYTHON, "-c", code, url, json.dumps(body)).stdout

    @property
    def pid(self) -> int:
        return int(self.machine.show("MainPID"))

    def processes(self) -> str:
        """Return the processes of the service's user, without those of its login sessions."""
        done = self.machine.run("ps", "-u", USER, "-o", "pid=,args=", check=False)
        others = ("systemd --user", "(sd-pam)", "dbus-daemon")
        lines = [
            line for line in done.stdout.splitlines() if not any(one in line for one in others)
        ]
        return "\n".join(lines)

    def until_answered(self) -> None:
        eventually(lambda: '"data":[4.0]' in self.ask(), self.machine.journal)

    def stop(self) -> None:
        self.machine.systemctl("stop", SERVICE, SOCKET, check=False)

    def purge(self) -> None:
        """Remove everything, for the next test."""
        self.stop()
        self.machine.systemctl("disable", "pytriton-daemon", SOCKET, check=False)
        folders = ["/run/pytriton-daemon", "/var/lib/pytriton-daemon", "/etc/pytriton-daemon"]
        folders += ["/run/private/pytriton-daemon", "/var/lib/private/pytriton-daemon"]
        units = [f"/etc/systemd/system/{one}" for one in (SERVICE, f"{SERVICE}.d", SOCKET)]
        self.machine.run("rm", "--recursive", "--force", *folders, *units)
        self.machine.systemctl("daemon-reload")
        self.machine.systemctl("reset-failed")
        self.machine.run("journalctl", "--quiet", "--rotate")
        self.machine.run("journalctl", "--quiet", "--vacuum-time=1s")

    @contextlib.contextmanager
    def under_load(self) -> Iterator[list[dict[str, int]]]:
        """Send requests within the block, over new and kept connections; the yielded results are complete after it."""
        reported: list[dict[str, int]] = []
        with self.machine.start(sys.executable, "/opt/scripts/load.py") as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdout.readline()  # it has been answered
            try:
                yield reported
            finally:
                client.stdin.close()
                said = client.stdout.read()
                client.wait(100)
            reported += json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("sockets", [False, True], ids=["", "sockets"])
def test_a_service_from_install_to_uninstall(service: Service, sockets: bool) -> None:
    machine, flags = service.machine, ("--sockets",) if sockets else ()
    service.install(*flags)
    assert "network-online.target" not in machine.show("After")
    service.start()  # returns when the daemon has said READY=1
    assert machine.show("ActiveState") == "active"
    assert machine.show("StatusText") == "ready: 0 of 0 models ready"
    service.register()  # without saying where the daemon is
    assert '"data":[4.0]' in service.ask()
    for user in ("root", USER):
        status = machine.run(str(PROGRAM), "status", "--json", user=user).stdout
        assert [one["name"] for one in json.loads(status)["models"]] == ["double"]
    eventually(lambda: machine.show("StatusText") == "ready: 1 of 1 models ready", machine.journal)
    shown = machine.run("systemctl", "status", "--full", "--lines=0", SERVICE).stdout
    assert max(map(len, shown.splitlines())) < 400, shown

    service.settings("log_level = 'debug'\n")
    machine.systemctl("reload", SERVICE)
    assert "settings" in machine.journal("--output=cat", "--grep=settings")
    assert machine.show("ActiveState") == "active"

    first = service.pid
    service.stop()
    assert machine.show("ActiveState") == "inactive"
    assert (machine.show("Result"), machine.show("ExecMainStatus")) == ("success", "0")
    assert service.processes() == ""
    assert machine.run("ls", "/dev/shm").stdout == ""
    service.start()
    assert service.pid != first
    service.until_answered()  # it was kept
    service.stop()
    uninstalled = machine.run(*service.program, "service", "uninstall", "--systemd").stdout
    assert uninstalled.count("deleted /etc/systemd/system/") == 1 + sockets
    machine.systemctl("daemon-reload")
    assert machine.show("LoadState") in ("not-found", "masked")


def test_the_journal_distinguishes_errors(service: Service) -> None:
    """It has tracebacks and only its own timestamps, also for errors before logging is set up."""
    service.install()
    service.start()
    service.register()
    assert "x is negative" in service.ask(-1.0)
    machine = service.machine

    def errors() -> str:
        return machine.journal("--priority=err", "--output=cat")

    eventually(lambda: "x is negative" in errors(), machine.journal)
    assert "daemon started" not in errors()
    everything = machine.journal("--output=cat")
    assert "daemon started" in everything
    assert re.search(r"^<\d>", everything, re.MULTILINE) is None
    assert re.search(r"20\d\d-\d\d-\d\d", everything) is None
    service.stop()
    service.settings("http_prt = 1\n")
    machine.systemctl("start", SERVICE, check=False)
    assert "http_prt" in errors()


def test_a_hung_daemon_is_restarted(service: Service) -> None:
    service.install(drop_in="[Service]\nWatchdogSec=2\n")
    service.start()
    service.register()
    hung = service.pid
    machine = service.machine
    machine.run("kill", "-STOP", str(hung))
    eventually(lambda: machine.show("NRestarts") == "1", machine.journal)
    assert "Watchdog timeout" in machine.journal()
    eventually(lambda: machine.show("ActiveState") == "active", machine.journal)
    assert service.pid != hung
    service.until_answered()


#: What clients may see of a service that is away for a moment, without sockets that outlive it.
_AWAY = ("answered", "ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected", "503 ")


def test_a_restart_under_load_refuses_connections_in_between(service: Service) -> None:
    service.install()
    service.start()
    service.register()
    with service.under_load() as reported:
        service.machine.systemctl("restart", SERVICE)
        service.until_answered()
    for counts in reported:
        assert counts["answered"] > 0
        assert all(what.startswith(_AWAY) for what in counts), reported


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_with_sockets_a_restart_under_load_loses_nothing(service: Service, how: str) -> None:
    """Except requests in flight when the daemon is killed."""
    service.install("--sockets")
    service.start()
    service.register()
    first = service.pid
    with service.under_load() as reported:
        if how == "restart":
            service.machine.systemctl("restart", SERVICE)
        else:
            service.machine.systemctl("kill", "--signal=KILL", "--kill-who=main", SERVICE)
            eventually(lambda: service.pid not in (0, first), service.machine.journal)
        service.until_answered()
    for counts in reported:
        assert counts.pop("answered") > 0
        lost = ["BrokenPipeError", "ConnectionResetError", "RemoteDisconnected"]
        assert set(counts) <= set(lost if how == "kill" else ()), reported
        assert sum(counts.values()) <= 1, reported  # a client has one request under way


def test_an_upgrade_under_load_loses_nothing(service: Service) -> None:
    """systemd does not lose track of the daemon either, which remains the same process."""
    service.install()
    service.start()
    service.register()
    first = service.pid
    with service.under_load() as reported:
        service.machine.run(str(PROGRAM), "upgrade", user=USER)
    assert [set(counts) for counts in reported] == [{"answered"}] * 2
    assert (service.pid, service.machine.show("NRestarts")) == (first, "0")
    eventually(lambda: service.machine.show("SubState") == "running", service.machine.journal)
    assert (
        "systemd runs the daemon"
        in service.machine.run(str(PROGRAM), "restart", check=False).stderr
    )
    assert service.pid == first
    service.machine.systemctl("stop", SERVICE)
    assert service.machine.show("Result") == "success"


@pytest.fixture
def releases(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Put wheels of this version and of the next patch release into the machine's INDEX; return both versions."""
    monkeypatch.setenv("CC", "no-such-compiler")  # the compiled parts are in the machine's cache
    former = installed_version("pytriton-daemon")
    versions = (former, next_patch(former))
    copy_sources(tmp_path, symlinks=True)
    project = tmp_path / "pyproject.toml"
    text = project.read_text("utf-8")
    index = Path(f"/proc/{machine.leader}/root{INDEX}")
    for version in versions:
        project.write_text(text.replace(f'version = "{former}"', f'version = "{version}"', 1))
        build(tmp_path, index, "--wheel")
        shutil.rmtree(tmp_path / "build")
    machine.run(f"{sys.base_prefix}/bin/python3", "-m", "venv", "--without-pip", VENV)
    # For pip and the dependencies. The environment's own pytriton comes first.
    machine.write(f"{VENV}/lib/python3.{sys.version_info[1]}/site-packages/site.pth", f"{SITE}\n")
    yield versions
    machine.run("rm", "--recursive", INDEX, VENV)


def test_a_release_is_upgraded_and_downgraded_in_place(
    service: Service, releases: tuple[str, str]
) -> None:
    """Both under load without a failed request, in the same process. Models stay registered."""
    machine, (former, later) = service.machine, releases
    pip = [f"{VENV}/bin/python", "-m", "pip", "install", "--no-index", f"--find-links={INDEX}"]

    def install(version: str) -> None:
        machine.run(*pip, "--no-deps", "--force-reinstall", f"pytriton-daemon=={version}")

    def status() -> tuple[str, list[str]]:
        shown = json.loads(machine.run(*service.program, "status", "--json", user=USER).stdout)
        return shown["version"], [f"{one['name']}: {one['state']}" for one in shown["models"]]

    service.program = [f"{VENV}/bin/pytriton-daemon"]
    install(former)
    service.install()
    service.start()
    machine.run(f"{VENV}/bin/python", "/opt/scripts/register.py", user=USER)
    assert status() == (former, ["double: ready"])
    first = service.pid
    for before, version in ((former, later), (later, former)):
        with service.under_load() as reported:
            install(version)
            said = machine.run(*service.program, "upgrade", user=USER).stdout
        assert f"from version {before} to {version}" in said
        assert [set(counts) for counts in reported] == [{"answered"}] * 2
        assert status() == (version, ["double: ready"])
        assert service.pid == first
    machine.systemctl("restart", SERVICE)
    service.until_answered()
    assert status() == (former, ["double: ready"])


@pytest.mark.parametrize("sockets", [False, True], ids=["", "sockets"])
def test_invalid_settings_cause_no_restart_loop(service: Service, sockets: bool) -> None:
    """Polling clients neither start the daemon endlessly, nor trigger systemd's start limit."""
    service.install(*(("--sockets",) if sockets else ()))
    service.settings("http_port = 9000\n" if sockets else "http_prt = 8000\n")
    machine = service.machine
    with machine.start(sys.executable, "/opt/scripts/poll.py") as poll:
        try:
            machine.systemctl("enable", "--now", "pytriton-daemon", check=False)
            starts = 5 if sockets else 0
            eventually(lambda: int(machine.show("NRestarts")) >= starts, machine.journal)
            if not sockets:
                assert (
                    machine.show("ActiveState") == "failed"
                )  # and stays so: no connection waits for it
            service.settings("http_port = 8000\n")
            if not sockets:
                machine.systemctl("restart", SERVICE)
            eventually(lambda: machine.show("ActiveState") == "active", machine.journal)
            if sockets:
                assert machine.show("ActiveState", SOCKET) == "active"
            assert "start-limit-hit" not in machine.journal()
        finally:
            assert poll.stdin is not None
            poll.stdin.close()


_HARDENED = {
    "ProtectHome": "ProtectHome=yes\n",
    "ProtectSystem": "ProtectSystem=strict\n",
    "SystemCallFilter": "SystemCallFilter=@system-service\n",
    "DynamicUser": "DynamicUser=yes\nUser=dynamic-one\n",
}
_HARDENED["all"] = "".join(_HARDENED.values())


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian's Python is 3.11")
@pytest.mark.parametrize("how", list(_HARDENED))
def test_a_hardened_service_serves(service: Service, how: str) -> None:
    service.program = [DEBIANS_PYTHON, "-m", "pytriton._cli"]
    service.install(drop_in=f"[Service]\n{_HARDENED[how]}")
    service.start()
    service.machine.run(DEBIANS_PYTHON, "/opt/scripts/register.py")
    assert '"data":[4.0]' in service.ask()
    service.machine.systemctl("restart", SERVICE)
    service.until_answered()


def test_an_address_that_does_not_match_the_sockets_is_refused(service: Service) -> None:
    service.install("--sockets")
    service.settings("http_address = '0.0.0.0'\n")
    machine = service.machine
    machine.systemctl("enable", "--now", "pytriton-daemon", check=False)
    text = "and the setting http_address says 0.0.0.0"
    eventually(lambda: text in machine.journal("--priority=err"), machine.journal)
    service.settings("")
    eventually(lambda: machine.show("ActiveState") == "active", machine.journal)


def test_a_user_service_lingers_if_requested(machine: Machine) -> None:
    """`install` prints how; the user's shell finds the daemon."""
    here = "export XDG_RUNTIME_DIR=/run/user/$(id -u);"

    def as_user(command: str, *, check: bool = True) -> str:
        done = machine.run(f"{here} {command}", user=USER, check=check)
        return done.stdout + done.stderr

    install = f"{PROGRAM} service install --systemd --user --cache-dir={CACHE}"
    assert "loginctl enable-linger" in as_user(install)
    machine.run("loginctl", "enable-linger", USER)
    assert "loginctl enable-linger" not in as_user(install)
    alive = f"/run/user/{machine.run('id', '-u', USER).stdout.strip()}/bus"
    eventually(
        lambda: machine.run("test", "-e", alive, check=False).returncode == 0, machine.journal
    )
    try:
        as_user("systemctl --user daemon-reload && systemctl --user enable --now pytriton-daemon")
        as_user(f"{sys.executable} /opt/scripts/register.py")
        assert "double" in as_user(f"{PROGRAM} models")
        as_user("systemctl --user disable --now pytriton-daemon")
        assert "no daemon is running" in as_user(f"{PROGRAM} models", check=False)
    finally:
        as_user("systemctl --user stop pytriton-daemon", check=False)
        as_user("rm --recursive --force ~/.config/systemd ~/.local/state", check=False)
        machine.run("loginctl", "disable-linger", USER)
