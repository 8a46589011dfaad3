"""The command group `service`, which makes a service manager run the daemon."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from pytriton._cli import service_files
from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import ConfigFlag
from pytriton._cli.output import say
from pytriton._cli.service_files import Service
from pytriton._cli.settings import load_settings, with_setting_flags
from pytriton._cli.typer_adapter import PlainFlags
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode

service = typer.Typer(
    cls=PlainFlags, help="Run a daemon under systemd or supervisord.", no_args_is_help=True
)

SystemdFlag = Annotated[bool, typer.Option("--systemd", help="Use a systemd unit.")]
SupervisordFlag = Annotated[
    bool, typer.Option("--supervisord", help="Use a supervisord program section.")
]
UserFlag = Annotated[
    bool, typer.Option("--user", help="systemd: use the service manager of this user.")
]
FolderFlag = Annotated[
    Optional[Path],
    typer.Option(
        metavar="PATH", help="Directory for the file. Default: that of the service manager."
    ),
]


@service.command("install")
@command
@with_setting_flags
def install(
    flags: dict[str, Any],
    config: ConfigFlag = None,
    systemd: SystemdFlag = False,
    supervisord: SupervisordFlag = False,
    user: UserFlag = False,
    run_as: Annotated[
        Optional[str],
        typer.Option(
            metavar="NAME",
            help="User for the daemon and its workers. Default: the user who called sudo, else you.",
        ),
    ] = None,
    sockets: Annotated[
        bool,
        typer.Option(
            "--sockets",
            help="systemd: let systemd listen on the daemon's ports, so that connections wait while it is down.",
        ),
    ] = False,
    folder: FolderFlag = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the file instead of writing it.")
    ] = False,
) -> None:
    """Write the file with which a service manager runs `pytriton-daemon start` with these flags."""
    kind = _kind(systemd, supervisord, user)
    if user and run_as is not None:
        raise CliError(ExitCode.USAGE, "--user and --run-as contradict each other: remove one.")
    if sockets and kind == "supervisord":
        raise CliError(
            ExitCode.USAGE,
            "--sockets needs --systemd: only systemd passes listening sockets to a service.",
        )
    start_flags = StartFlags(flags, config).absolute()
    path = _path(kind, folder)
    described = Service(
        _program(),
        start_flags,
        load_settings(start_flags).config,
        _account(run_as),
        sockets,
        _log_folder(folder),
    )
    files = {path: service_files.TEXTS[kind](described)}
    if sockets:
        files[path.with_suffix(".socket")] = _socket_unit(described)
    for path, text in files.items():
        if print_only:
            typer.echo(text, nl=False)
        else:
            _write(path, text)
            typer.echo(f"wrote {path}")
    if print_only:
        return
    if kind == "system" and described.account == "root":
        say(
            "The daemon and every registered callable will run as root; to change that, use --run-as NAME."
        )
    say(f"Next: {service_files.NEXT[kind]}")
    if kind == "user" and not _lingers():
        say(
            "The service stops when you log out. To run it without a login, from boot: loginctl enable-linger"
        )


@service.command("uninstall")
@command
def uninstall(
    systemd: SystemdFlag = False,
    supervisord: SupervisordFlag = False,
    user: UserFlag = False,
    folder: FolderFlag = None,
) -> None:
    """Delete the file that `install` has written. Stop the service first."""
    kind = _kind(systemd, supervisord, user)
    path = _path(kind, folder)
    sockets = path.with_suffix(".socket")
    for one in (path, sockets) if kind != "supervisord" and sockets.exists() else (path,):
        _delete(one)
    say(f"Next: {service_files.AFTERWARDS[kind]}")


def _socket_unit(service: Service) -> str:
    try:
        return service_files.socket_unit(service)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"--sockets: {error}.") from None


def _delete(path: Path) -> None:
    try:
        if not path.read_text(errors="replace").startswith(service_files.MARK):
            raise CliError(
                ExitCode.USAGE, f"{path} was not written by this command, so it is not deleted."
            )
        path.unlink()
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"cannot delete {path}: {error.strerror}.") from None
    typer.echo(f"deleted {path}")


def _kind(systemd: bool, supervisord: bool, user: bool) -> str:
    if systemd == supervisord or (user and supervisord):
        raise CliError(ExitCode.USAGE, "use --systemd, --systemd --user, or --supervisord.")
    return "supervisord" if supervisord else "user" if user else "system"


def _program() -> list[str]:
    """Return the command that runs this installation, with its absolute path."""
    script = Path(sys.executable).with_name("pytriton-daemon")
    return [str(script)] if script.exists() else [sys.executable, "-m", "pytriton._cli"]


def _account(name: str | None) -> str:
    name = name or os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        raise CliError(ExitCode.USAGE, f"--run-as: this machine has no user {name!r}.") from None


def _log_folder(folder: Path | None) -> str:
    """Return the directory where supervisord logs the daemon's output; "" for the directory of the written file."""
    if folder is not None or os.geteuid() != 0:
        return ""
    debians = Path("/var/log/supervisor")
    return str(debians if debians.is_dir() else debians.parent)


def _lingers() -> bool:
    """Return True if this user's service manager runs even when the user is not logged in (loginctl(1),
    enable-linger).
    """
    try:
        return Path("/var/lib/systemd/linger", pwd.getpwuid(os.geteuid()).pw_name).exists()
    except (KeyError, OSError):
        return False


def _path(kind: str, folder: Path | None) -> Path:
    name = f"{service_files.NAME}.{'conf' if kind == 'supervisord' else 'service'}"
    if folder is not None:
        return folder.expanduser() / name
    if kind == "user":
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return Path(home, "systemd/user", name)
    if kind == "system":
        return Path("/etc/systemd/system", name)
    # Debian's directory, then Fedora's, where files end in .ini.
    if not Path("/etc/supervisor/conf.d").is_dir() and Path("/etc/supervisord.d").is_dir():
        return Path("/etc/supervisord.d", f"{service_files.NAME}.ini")
    return Path("/etc/supervisor/conf.d", name)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    try:
        if path.parent.name == "user":  # systemd's directory of this user, which may not exist yet
            path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        shutil.move(str(new), str(path))
    except OSError as error:
        raise CliError(
            ExitCode.USAGE,
            f"cannot write {path}: {error.strerror}. Choose another directory with --folder, use "
            "--print, or (systemd) install for yourself with --user; the system-wide directory requires root.",
        ) from None
