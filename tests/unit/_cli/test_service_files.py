"""What `service install` writes: units and sections that systemd and supervisord accept."""

from __future__ import annotations

import configparser
import getpass
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.forks.prefork import command

from pytriton._cli.service_files import TEXTS, Service, socket_unit
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import FINAL, ExitCode

ROOT = Path(__file__).parents[3]
PROGRAM = Path(sys.executable).with_name("pytriton-daemon")
needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine"
)


def _text(kind: str, account: str = "root", **flags: object) -> str:
    config = DaemonConfig(grace_period_s=100)
    return TEXTS[kind](Service([str(PROGRAM)], StartFlags(flags), config, account))


def _service(*, sockets: bool = False, log_folder: str = "", **settings: Any) -> Service:
    """Return the service of a daemon with these settings, without flags."""
    config = DaemonConfig(**settings)
    program, flags = [str(PROGRAM)], StartFlags({})
    return Service(program, flags, config, "root", sockets=sockets, log_folder=log_folder)


def _cli(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), "service", *arguments],
        env={**os.environ, **env},
        check=False,
        capture_output=True,
        text=True,
    )


@needs_systemd_analyze
@pytest.mark.parametrize("flags", [{}, {"cache_dir": '/a "b" $c %d', "allow_grpc": False}])
def test_systemd_accepts_the_unit(flags: dict[str, object], tmp_path: Path) -> None:
    unit = tmp_path / "pytriton-daemon.service"
    unit.write_text(_text("system", account=getpass.getuser(), **flags))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd_analyze
def test_the_units_exposure_does_not_grow(tmp_path: Path) -> None:
    """systemd 252 rates it 4.2 of 10 for an unprivileged user."""
    unit = tmp_path / "pytriton-daemon.service"
    unit.write_text(_text("system", account="someone"))
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=43", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a unit file offline")
    assert done.returncode == 0, done.stdout[-400:]


def _directives(unit: str) -> set[str]:
    """Return the names of the hardening directives: everything after UMask."""
    _, _, hardening = unit.partition("UMask=")
    return set(re.findall(r"^(\w+)=", hardening, re.MULTILINE)) - {"WantedBy"}


def test_the_document_describes_the_unit_that_is_installed() -> None:
    document = (ROOT / "docs" / "operations" / "security.md").read_text()
    _, _, text = document.partition("2. **systemd hardening.**")
    written, _, left_out = text.partition("\n3. ")[0].partition("Left out")
    names = re.compile(r"`([A-Z]\w+)")
    in_order = names.findall(written)
    assert set(in_order) == _directives(_text("system", account="someone"))
    assert set(in_order[:5]) == _directives(_text("user"))
    comments = _text("system").partition("UMask=")[2]
    for name in names.findall(left_out):
        assert re.search(rf"^#.*\b{name}\b", comments, re.MULTILINE), name
        assert name not in in_order


def test_timeouts_and_exit_codes_match_the_daemons() -> None:
    unit = _text("system")
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(stop) > 100
    final = " ".join(str(int(code)) for code in FINAL)
    assert f"RestartPreventExitStatus={final}\n" in unit
    assert "StartLimitIntervalSec=0\n" in unit
    assert {ExitCode.UNRECOVERABLE, ExitCode.SERVER_FAILED, ExitCode.ERROR}.isdisjoint(FINAL)
    assert "User=root" in unit
    assert "CapabilityBoundingSet" not in unit
    assert "User=" not in _text("user")


def test_with_socket_activation_invalid_settings_are_retried() -> None:
    """systemd does not restart the service, but each further connection starts it."""
    unit = TEXTS["system"](_service(sockets=True))
    assert "RestartPreventExitStatus" not in unit
    assert "Restart=on-failure\nRestartSec=2\n" in unit
    assert "StartLimitIntervalSec=0\n" in unit


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"http_address": "0.0.0.0", "grpc_address": "::", "metrics_address": "::1"}, ""),
        ({"http_address": "localhost", "control_tcp": "127.0.0.1:1"}, ""),
        ({"http_address": "10.0.0.1"}, "http_address is 10.0.0.1"),
        ({"http_address": "10.0.0.1", "allow_http": False}, ""),
        ({"grpc_address": "gpu-1.example"}, "grpc_address is gpu-1.example"),
        ({"management_address": "[fd00::1]:9000"}, "management_address is fd00::1"),
        ({"openai_address": "10.0.0.1"}, "openai_address is 10.0.0.1"),
        ({"control_tcp": "10.0.0.1:1"}, "control_tcp is 10.0.0.1"),
        ({"model_repository": ("/m", "s3://bucket/m")}, "model_repository is s3://bucket/m"),
    ],
)
def test_the_unit_waits_for_the_network_only_if_needed(settings: dict[str, Any], why: str) -> None:
    """Without a network, a machine may wait two minutes for it at boot."""
    unit = TEXTS["system"](_service(**settings))
    waits = "Wants=network-online.target\nAfter=network-online.target\n"
    assert (waits in unit, "network-online" in unit) == (bool(why), bool(why))
    assert f"# {why}.\n" in unit if why else "\nAfter=network.target\n" in unit
    user = TEXTS["user"](_service(**settings))
    assert "network" not in user  # the system's targets are not known there


def test_supervisord_accepts_the_section() -> None:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"))
    parser.read_string(_text("supervisord", cache_dir="/a b/100%"))
    section = parser["program:pytriton-daemon"]
    words = shlex.split(section["command"].replace("%%", "%"))
    assert words == [str(PROGRAM), "start", "--cache-dir=/a b/100%"]
    assert int(section["stopwaitsecs"]) > 100
    assert section["exitcodes"].split(",") == [str(int(code)) for code in (0, *FINAL)]
    assert section["stdout_logfile"] == "%(here)s/pytriton-daemon.log"
    parser.read_string(TEXTS["supervisord"](_service(log_folder="/var/log/100%")))
    log = parser["program:pytriton-daemon"]["stdout_logfile"]
    assert log == "/var/log/100%%/pytriton-daemon.log"


@pytest.mark.programs
def test_uninstall_removes_only_what_was_installed(tmp_path: Path) -> None:
    wanted = ("--systemd", "--user", "--folder", str(tmp_path))
    done = _cli("install", *wanted, "--http-port", "9000")
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "pytriton-daemon.service"
    assert f"ExecStart={PROGRAM} start --http-port=9000 " in unit.read_text()
    assert "systemctl --user" in done.stderr
    assert "loginctl enable-linger" in done.stderr
    assert _cli("uninstall", *wanted).returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert "No such file" in _cli("uninstall", *wanted).stderr
    unit.write_text("[Service]\n")
    assert _cli("uninstall", *wanted).returncode == ExitCode.USAGE
    assert unit.exists()


def test_systemd_listens_on_the_ports_of_the_settings() -> None:
    def listens(**settings: Any) -> list[str]:
        unit = socket_unit(_service(sockets=True, **settings))
        return re.findall(r"^ListenStream=(.*)$", unit, re.MULTILINE)

    assert listens() == ["127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002"]
    assert listens(http_address="::", grpc_port=0, allow_metrics=False) == ["[::]:8000"]
    assert "FreeBind" not in socket_unit(_service(sockets=True))
    later = socket_unit(_service(sockets=True, http_address="10.0.0.1"))
    assert "ListenStream=10.0.0.1:8000\n" in later
    assert "FreeBind=yes\n" in later  # the network may come up later
    with pytest.raises(ValueError, match="there is no port to listen on"):
        listens(http_port=0, grpc_port=0, metrics_port=0)


@pytest.mark.programs
def test_the_socket_unit_is_installed_and_uninstalled_with_the_service(tmp_path: Path) -> None:
    wanted = ("--systemd", "--user", "--folder", str(tmp_path))
    done = _cli("install", *wanted, "--sockets")
    assert done.returncode == 0, done.stderr
    service, sockets = (tmp_path / f"pytriton-daemon.{kind}" for kind in ("service", "socket"))
    assert done.stdout == f"wrote {service}\nwrote {sockets}\n"
    assert "\nRequires=pytriton-daemon.socket\n" in service.read_text()
    assert "\nAlso=pytriton-daemon.socket\n" in service.read_text()
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "--user", "verify", str(sockets)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert "ListenStream" not in checked.stderr
    assert _cli("uninstall", *wanted).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.programs
def test_print_writes_nothing_and_goes_to_standard_output(tmp_path: Path) -> None:
    done = _cli("install", "--systemd", "--user", "--print", XDG_CONFIG_HOME=str(tmp_path))
    assert done.stdout == _cli("install", "--systemd", "--user", "--print").stdout
    assert done.stdout.startswith("# Written by")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ((), "use --systemd"),
        (("--systemd", "--supervisord"), "use --systemd"),
        (("--systemd", "--user", "--run-as", "root"), "contradict"),
        (("--systemd", "--run-as", "no such user"), "no user 'no such user'"),
        (("--systemd", "--http-port", "x"), "--http-port: 'x' is not"),
        (("--supervisord", "--folder", "/no/such"), "cannot write /no/such/"),
        (("--supervisord", "--sockets"), "only systemd passes listening sockets"),
        (("--systemd", "--sockets", "--http-address", "localhost"), "http_address is 'localhost'"),
    ],
)
def test_invalid_options_exit_with_2(arguments: tuple[str, ...], reported: str) -> None:
    done = command("service", "install", *arguments)
    assert done.returncode == ExitCode.USAGE
    assert reported in done.stderr
