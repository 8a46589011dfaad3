"""The files of service managers: a systemd unit (systemd.service(5), systemd.exec(5)), a supervisord section."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from pytriton._cli.settings import Given
from pytriton._host.settings.declarations import DaemonConfig, flag_name, options
from pytriton._protocol.exit_codes import FINAL, ExitCode

NAME = "pytriton-daemon"
#: The first line of each file: what `uninstall` may delete.
MARK = "# Written by `pytriton-daemon service install`"

#: Beyond what the settings allow for: interpreters start, tritonserver ends, processes are reaped.
_MARGIN_S = 30
#: Setting -> (what makes the folder, its place for the system, its place for a user's manager).
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
    """The facts that the files are made of."""

    program: list[str]  #: the command of this installation
    given: Given  #: the flags that the daemon gets, paths absolute
    config: DaemonConfig  #: the settings that these flags lead to now, for time-outs
    account: str  #: user that a daemon of the system runs as
    sockets: bool = False  #: systemd listens for the daemon
    log_folder: str = ""  #: of supervisord's own log of it; empty: beside the section's file

    def argv(self, *more: str) -> list[str]:
        """Return the command that starts the daemon."""
        config = [] if self.given.config is None else ["--config", self.given.config]
        flags = [word for name, value in self.given.flags.items() for word in _words(name, value)]
        return [*self.program, "start", *config, *flags, *more]

    @property
    def stop_s(self) -> int:
        """The most seconds that an orderly stop takes."""
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
{sockets}{network}# It is started again for as long as it takes, and `systemctl restart` never needs `reset-failed`.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={start}
ExecReload={reload}
{account}{folders}
# The daemon asks for more time while it fetches tritonserver and while batches are answered.
TimeoutStartSec={start_s}
TimeoutStopSec={stop_s}
WatchdogSec=30
{restart}Restart=on-failure
RestartSec=2
# SIGTERM to the daemon alone: it ends its workers in order. What is left then is killed.
KillMode=mixed
# A worker that the kernel kills for its memory is replaced; the service goes on.
OOMPolicy=continue
# Lanes, sockets of clients, and memory that is passed as descriptors.
LimitNOFILE=65536
UMask=0077

{hardening}
[Install]
{also}WantedBy={target}
"""
_SOCKETS = """\
{mark}
[Unit]
Description=Sockets of the PyTriton daemon: while it is away, connections wait

[Socket]
# The daemon's settings name the same addresses and ports: change both.
{listen}
Backlog=4096

[Install]
WantedBy=sockets.target
"""

_RESTART = """\
# {unrecoverable} (unrecoverable error in a model) and all other failures start the whole service again, but
# for ends that were asked for or that will not mend themselves: {final_names}.
RestartPreventExitStatus={final}
"""
#: A connection would start it again at once, and so would each that waits.
_RESTART_WITH_SOCKETS = """\
# Every failure starts the whole service again, wrong settings included: connections wait meanwhile, and are answered
# once the settings are right.
"""
_NETWORK = {
    False: "After=network.target\n",
    True: "# {why}.\nWants=network-online.target\nAfter=network-online.target\n",
}

_HARDENING = """\
# What follows also holds for every registered callable.
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
# PrivateTmp: a callable whose working folder or modules lie in /tmp would not be found there.
# ProtectHome, ProtectSystem=strict: callables are imported from home folders and write their caches there. The daemon
# itself runs with both (the latter with PrivateTmp=yes, for callables that need a folder for temporary files).
# PrivateIPC, RemoveIPC: clients of the same user share /dev/shm with tritonserver.
# ProcSubset=pid: the memory that is left is read from /proc/meminfo and /proc/vmstat.
# DynamicUser: the control socket is for the daemon's own user and root, who have to be those who register.
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
# Other users' processes cannot be seen, but for root's daemon; its own can, whose /proc it reads.
ProtectProc=invisible
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
"""
_NO_ROOT = "CapabilityBoundingSet=\n"


def system_unit(service: Service) -> str:
    """Return a unit for the system's service manager."""
    hardening = _HARDENING + _SYSTEM_HARDENING
    if service.account != "root":  # root without its capabilities could not even read others' files
        hardening += _NO_ROOT
    account = f"User={service.account}\n"
    why = why_network(service.config)
    network = _NETWORK[bool(why)].format(why=why)
    target = "multi-user.target"
    return _unit(service, account=account, hardening=hardening, target=target, network=network)


def why_network(config: DaemonConfig) -> str:
    """Return which setting needs the network to be up before the daemon starts; "" if none does.

    An address of this machine alone is there always, and so is every interface (0.0.0.0, ::).
    """
    listens = {
        f"{name}_address": getattr(config, f"{name}_address")
        for name in ("http", "grpc", "metrics")
        if getattr(config, f"allow_{name}")
    }
    listens["openai_address"] = config.openai_address
    for name in ("operations", "control_tcp"):
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
    """Return a unit for a user's own service manager, which may only restrict system calls."""
    return _unit(service, account="", hardening=_HARDENING, target="default.target", network="")


def socket_unit(service: Service) -> str:
    """Return the unit of the sockets on which systemd listens for the daemon.

    Raises:
        ValueError: the settings name no port, or a host's name; says which.
    """
    config, lines, absent = service.config, [], False
    for name in ("http", "grpc", "metrics"):
        address, port = getattr(config, f"{name}_address"), getattr(config, f"{name}_port")
        if not (getattr(config, f"allow_{name}") and port):
            continue
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(f"{name}_address is {address!r}, and systemd takes numbers") from None
        absent |= not _is_there_always(address)
        lines.append(f"ListenStream={f'[{ip}]' if ip.version == 6 else ip}:{port}")
    if not lines:
        raise ValueError("the settings name no port: each is 0 or off")
    if absent:  # an address that the network may not have yet
        lines.append("FreeBind=yes")
    return _SOCKETS.format(mark=MARK, listen="\n".join(lines))


def _unit(service: Service, *, account: str, hardening: str, target: str, network: str) -> str:
    lines, specified = [], []
    for name, (directive, root) in _FOLDERS.items():
        if name not in options() or name in service.given.flags:
            continue
        lines += [f"{directive}={NAME}", f"{directive}Mode=0700"]
        specified.append(f"{flag_name(name)}={root}/{NAME}")
        if name == "runtime_dir":  # logs, and how the last daemon ended, outlive a stop
            lines.append("RuntimeDirectoryPreserve=yes")
    where = service.given.flags.get("runtime_dir")
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
    """Return a word as a unit's command line has it: quotes, and no specifiers or variables."""
    for char, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n")):
        word = word.replace(char, written)
    return f'"{word}"' if any(char in word for char in " \t'\";#") or not word else word


# ── supervisord ──────────────────────────────────────────────────────────────────────────────────

_SECTION = """\
{mark}
[program:{name}]
command={command}
{account}autostart=true
; Once it has run for startsecs, it is started again after every end but a stop that was asked for ({ok}) and what will
; not mend itself. What ends earlier, whatever the code, is tried again startretries times, then it is FATAL.
autorestart=unexpected
exitcodes={final}
startsecs=5
startretries=5
; SIGTERM to the daemon alone: it answers the batches at hand (grace period {grace:g} s) and ends its workers.
stopsignal=TERM
stopwaitsecs={stop_s}
stopasgroup=false
killasgroup=false
; What it says is in the runtime directory's logs/, too; what it says before it has those is here alone.
redirect_stderr=true
stdout_logfile={log}
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=3
"""


def supervisord_section(service: Service) -> str:
    """Return a section of supervisord's configuration (supervisord.org, "Configuration File")."""
    command = shlex.join(service.argv()).replace("%", "%%")
    return _SECTION.format(
        mark=MARK,
        name=NAME,
        # supervisord that is root itself: else it cannot change to anybody.
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
