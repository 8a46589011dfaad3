"""Files for service managers: systemd units (systemd.service(5), systemd.exec(5)), a supervisord section."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from pytriton._host.settings.declarations import DaemonConfig, flag_name, options
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import FINAL, ExitCode

NAME = "pytriton-daemon"
#: The first line of each file; `uninstall` deletes only files that start with it.
MARK = "# Written by `pytriton-daemon service install`"

#: Added to time limits in the settings, for starts of interpreters, exits of processes and so on.
_MARGIN_S = 30
#: Setting -> (the directive that creates the directory, its root as a systemd specifier).
_FOLDERS = {
    "runtime_dir": ("RuntimeDirectory", "%t"),
    "state_dir": ("StateDirectory", "%S"),
    "cache_dir": ("CacheDirectory", "%C"),
}

NEXT = {
    "system": f"systemctl daemon-reload && systemctl enable --now {NAME}",
    "user": f"systemctl --user daemon-reload && systemctl --user enable --now {NAME}",
    "supervisord": f"supervisorctl reread && supervisorctl add {NAME}",
}
AFTERWARDS = {
    "system": "systemctl daemon-reload",
    "user": "systemctl --user daemon-reload",
    "supervisord": "supervisorctl update",
}


@dataclass(frozen=True)
class Service:
    """The data that the files are generated from."""

    program: list[str]  #: the command of this installation
    start_flags: StartFlags  #: the daemon's flags, with absolute paths
    config: DaemonConfig  #: the current settings with these flags, for time-outs
    account: str  #: user that the system's daemon runs as
    sockets: bool = False  #: systemd listens for the daemon
    log_folder: str = (
        ""  #: directory of supervisord's own log of the daemon; empty: beside the section's file
    )

    def argv(self, *more: str) -> list[str]:
        """Return the command that starts the daemon."""
        config = [] if self.start_flags.config is None else ["--config", self.start_flags.config]
        flags = [
            word for name, value in self.start_flags.flags.items() for word in _words(name, value)
        ]
        return [*self.program, "start", *config, *flags, *more]

    @property
    def stop_s(self) -> int:
        """Maximum duration of a graceful stop, in seconds."""
        return round(self.config.grace_period_s) + _MARGIN_S


def _words(name: str, value: object) -> list[str]:
    flag = flag_name(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [f"{flag}={one}" for one in values]


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────

_UNIT = """\
{mark}
[Unit]
Description=PyTriton daemon: Python callables behind NVIDIA Triton Inference Server
{sockets}{network}# Restarts are not limited, and `systemctl restart` never needs `reset-failed`.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={start}
ExecReload={reload}
{account}{folders}
# The daemon asks for more time while it downloads tritonserver and while it finishes batches.
TimeoutStartSec={start_s}
TimeoutStopSec={stop_s}
WatchdogSec=30
{restart}Restart=on-failure
RestartSec=2
# SIGTERM goes to the daemon only, which stops its workers in order. Remaining processes are killed.
KillMode=mixed
# The daemon replaces a worker that the kernel kills for its memory; the service keeps running.
OOMPolicy=continue
# Lanes, client sockets, and shared memory that is passed as descriptors.
LimitNOFILE=65536
UMask=0077

{hardening}
[Install]
{also}WantedBy={target}
"""
_SOCKETS = """\
{mark}
[Unit]
Description=Sockets of the PyTriton daemon: connections wait while it is down

[Socket]
# The daemon's settings name the same addresses and ports: change both.
{listen}
Backlog=4096

[Install]
WantedBy=sockets.target
"""

_RESTART = """\
# {unrecoverable} (unrecoverable error in a model) and all other failures restart the whole service, except exits
# that were requested or that a restart cannot fix: {final_names}.
RestartPreventExitStatus={final}
"""
#: With sockets, a new or waiting connection would restart the daemon immediately.
_RESTART_WITH_SOCKETS = """\
# Every failure restarts the whole service, invalid settings included: connections wait until the settings are
# corrected.
"""
_NETWORK = {
    False: "After=network.target\n",
    True: "# {why}.\nWants=network-online.target\nAfter=network-online.target\n",
}

_HARDENING = """\
# These also apply to every registered callable.
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
# Left out on purpose:
# MemoryDenyWriteExecute: just-in-time compilers (numba, torch.compile, CUDA's own) need such memory.
"""
_SYSTEM_HARDENING = """\
# PrivateDevices, DevicePolicy, ProtectClock (which closes all devices, too): GPUs are devices.
# PrivateTmp: a callable whose working directory or modules are in /tmp would not be found there.
# ProtectHome, ProtectSystem=strict: callables are imported from home directories and write their caches there. The
# daemon itself works with both (the latter with PrivateTmp=yes, for callables that need a temporary directory).
# PrivateIPC, RemoveIPC: clients of the same user share /dev/shm with tritonserver.
# ProcSubset=pid: free memory is read from /proc/meminfo and /proc/vmstat.
# DynamicUser: the control socket is for the daemon's own user and root, and users must be able to register.
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
# Hides other users' processes, except from root's daemon. Its own remain visible; it reads their /proc.
ProtectProc=invisible
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
"""
_NO_ROOT = "CapabilityBoundingSet=\n"


def system_unit(service: Service) -> str:
    """Return the unit for the system's service manager."""
    hardening = _HARDENING + _SYSTEM_HARDENING
    # Root without its capabilities could not even read other users' files.
    if service.account != "root":
        hardening += _NO_ROOT
    account = f"User={service.account}\n"
    why = why_network(service.config)
    network = _NETWORK[bool(why)].format(why=why)
    target = "multi-user.target"
    return _unit(service, account=account, hardening=hardening, target=target, network=network)


def why_network(config: DaemonConfig) -> str:
    """Describe a setting that requires the network to be up before the daemon starts; "" if there is none.

    Loopback addresses, and addresses that mean every interface (0.0.0.0, ::), are always available.
    """
    listens = {
        f"{name}_address": getattr(config, f"{name}_address")
        for name in ("http", "grpc", "metrics")
        if getattr(config, f"allow_{name}")
    }
    listens["openai_address"] = config.openai_address
    for name in ("management_address", "control_tcp"):
        listens[name] = (getattr(config, name) or "localhost:0").rpartition(":")[0].strip("[]")
    for name, address in listens.items():
        if not _is_there_always(address):
            return f"{name} is {address}"
    clouds = [place for place in config.model_repository if "://" in place]
    return f"model_repository is {clouds[0]}" if clouds else ""


def _is_there_always(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    return ip.is_loopback or ip.is_unspecified


def user_unit(service: Service) -> str:
    """Return the unit for a user's service manager, which can restrict the daemon in fewer ways."""
    return _unit(service, account="", hardening=_HARDENING, target="default.target", network="")


def socket_unit(service: Service) -> str:
    """Return the unit with the sockets on which systemd listens for the daemon.

    Raises:
        ValueError: no port is served, or an address is a host name; the text says which.
    """
    config, lines, absent = service.config, [], False
    for name in ("http", "grpc", "metrics"):
        address, port = getattr(config, f"{name}_address"), getattr(config, f"{name}_port")
        if not (getattr(config, f"allow_{name}") and port):
            continue
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(
                f"{name}_address is {address!r}, but systemd needs an IP address"
            ) from None
        absent |= not _is_there_always(address)
        lines.append(f"ListenStream={f'[{ip}]' if ip.version == 6 else ip}:{port}")
    if not lines:
        raise ValueError(
            "there is no port to listen on: all ports are 0 or their endpoints are disabled"
        )
    if absent:  # the network may not have the address yet
        lines.append("FreeBind=yes")
    return _SOCKETS.format(mark=MARK, listen="\n".join(lines))


def _unit(service: Service, *, account: str, hardening: str, target: str, network: str) -> str:
    lines, specified = [], []
    for name, (directive, root) in _FOLDERS.items():
        if name not in options() or name in service.start_flags.flags:
            continue
        lines += [f"{directive}={NAME}", f"{directive}Mode=0700"]
        specified.append(f"{flag_name(name)}={root}/{NAME}")
        if name == "runtime_dir":  # logs and the exit record must survive a stop
            lines.append("RuntimeDirectoryPreserve=yes")
    where = service.start_flags.flags.get("runtime_dir")
    rundir = f"%t/{NAME}" if where is None else _quoted(str(where))
    return _UNIT.format(
        mark=MARK,
        start=" ".join([*map(_quoted, service.argv()), *specified]),
        reload=" ".join([*map(_quoted, service.program), "reload", "--runtime-dir", rundir]),
        account=account,
        folders="\n".join(lines),
        start_s=round(service.config.server_start_timeout_s) + _MARGIN_S,
        stop_s=service.stop_s,
        restart=_RESTART_WITH_SOCKETS if service.sockets else _restart(),
        network=network,
        hardening=hardening,
        target=target,
        sockets=f"Requires={NAME}.socket\n" if service.sockets else "",
        also=f"Also={NAME}.socket\n" if service.sockets else "",
    )


def _restart() -> str:
    return _RESTART.format(
        unrecoverable=int(ExitCode.UNRECOVERABLE),
        final=" ".join(str(int(code)) for code in FINAL),
        final_names=", ".join(code.name.lower() for code in FINAL),
    )


def _quoted(word: str) -> str:
    """Quote a word for the command line in a unit; escape specifiers and variables."""
    for char, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n")):
        word = word.replace(char, written)
    return f'"{word}"' if any(char in word for char in " \t'\";#") or not word else word


# ── supervisord ──────────────────────────────────────────────────────────────────────────────────

_SECTION = """\
{mark}
[program:{name}]
command={command}
{account}autostart=true
; After startsecs it is restarted on every exit except a requested stop ({ok}) and exits that a restart cannot fix.
; If it exits earlier, whatever the code, it is restarted up to startretries times and is then FATAL.
autorestart=unexpected
exitcodes={final}
startsecs=5
startretries=5
; SIGTERM goes to the daemon only, which finishes in-flight batches (grace period {grace:g} s) and stops its workers.
stopsignal=TERM
stopwaitsecs={stop_s}
stopasgroup=false
killasgroup=false
; The daemon also logs to logs/ in the runtime directory; messages from before those files exist are only here.
redirect_stderr=true
stdout_logfile={log}
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=3
"""


def supervisord_section(service: Service) -> str:
    """Return the section for supervisord's configuration (supervisord.org, "Configuration File")."""
    command = shlex.join(service.argv()).replace("%", "%%")
    return _SECTION.format(
        mark=MARK,
        name=NAME,
        # Only a supervisord that runs as root can change the user.
        account=f"user={service.account}\n" if service.account != "root" else "",
        command=command,
        ok=int(ExitCode.OK),
        final=",".join(str(int(code)) for code in (ExitCode.OK, *FINAL)),
        grace=service.config.grace_period_s,
        stop_s=service.stop_s,
        log=f"{service.log_folder}/{NAME}.log".replace("%", "%%")
        if service.log_folder
        else f"%(here)s/{NAME}.log",
    )


TEXTS: dict[str, Callable[[Service], str]] = {
    "system": system_unit,
    "user": user_unit,
    "supervisord": supervisord_section,
}
