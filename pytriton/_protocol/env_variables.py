"""Selects the environment variables for a model's workers: by default all except secrets and session variables.

Registered models get the registrant's variables; models from repositories get the daemon's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

#: Variables of a terminal, desktop, login, shell or service manager: meaningless or harmful elsewhere.
_OF_A_SESSION = frozenset(
    {
        "COLORTERM", "COLUMNS", "DISPLAY", "GIT_ASKPASS", "INVOCATION_ID", "JOURNAL_STREAM", "LINES",
        "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID", "MAIL", "MAINPID", "MANAGERPID", "NOTIFY_SOCKET",
        "OLDPWD", "PS1", "PWD", "SESSION_MANAGER", "SHLVL", "STY", "SYSTEMD_EXEC_PID", "TERM", "TMUX",
        "TMUX_PANE", "TTY", "WATCHDOG_PID", "WATCHDOG_USEC", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "_",
    }
)  # fmt: skip
_OF_A_SESSION_PREFIXES = (
    "BASH_FUNC_", "DBUS_", "DESKTOP_", "GNOME_", "GPG_", "JPY_", "KDE_", "SSH_", "SUDO_", "TERM_", "VSCODE_", "XDG_",
)  # fmt: skip
#: Exceptions to the session prefixes: these locate a user's files and do not depend on the session.
_FOLDERS = re.compile(r"XDG_(CACHE|CONFIG|DATA|STATE)_(HOME|DIRS)")
#: These make an interpreter wait for terminal input, or override the captured module search path.
_OF_A_KEYBOARD = frozenset({"PYTHONBREAKPOINT", "PYTHONINSPECT", "PYTHONSAFEPATH", "PYTHONSTARTUP"})
#: Name patterns that indicate a secret.
_SECRET = re.compile(
    r"TOKEN(?!IZERS_PARALLELISM)|SECRET|PASSW|PASSPHRASE|PASSCODE|(^|_)PASS(_|$)|.PWD$|CREDENTIAL|COOKIE|API_?KEY"
    r"|(^|_)KEYS?(_|$)|(^|_)AUTH(_|$)|AUTHORIZATION|(^|_)(PAT|DSN)$|^OTEL_.*HEADERS$"
)
#: Value patterns that indicate a secret: a URL with a password. Proxy variables are exempt.
_PASSWORD_IN_URL = re.compile(r"^[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
_PROXY = re.compile(r"^(ALL|FTP|HTTPS?)_PROXY$", re.IGNORECASE)
#: Prefixes of variables that are useless or harmful to a different interpreter.
_OF_AN_INTERPRETER = ("PYTHON", "VIRTUAL_ENV", "CONDA_")
#: `*` in a list of wanted names: everything, including secrets.
ALL = "*"

#: Hosts reached directly, whatever proxy is configured.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def forwarded_variables(
    environ: Mapping[str, str], *, own_interpreter: bool = True
) -> dict[str, str]:
    """Return the variables that are forwarded to workers automatically.

    Args:
        environ: all variables
        own_interpreter: the worker runs the same interpreter as the process that owns `environ`
    """
    return {
        name: value
        for name, value in usable_variables(environ, own_interpreter=own_interpreter).items()
        if not _is_of_a_session(name) and not looks_secret(name, value)
    }


def usable_variables(environ: Mapping[str, str], *, own_interpreter: bool = True) -> dict[str, str]:
    """Return all variables that a process without a terminal can use, including secrets."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OF_A_KEYBOARD
        and (own_interpreter or not name.startswith(_OF_AN_INTERPRETER))
        and _is_text(name + value)
    }


def selected_variables(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return the variables selected by a list: NAME copies a variable, NAME=VALUE sets one, `*` copies all."""
    found: dict[str, str] = {}
    for pattern in patterns:
        name, equals, value = pattern.partition("=")
        if pattern == ALL:
            found.update(usable_variables(environ))
        elif equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    return found


def local_variables(environ: Mapping[str, str], sent: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the variables that were not sent to the workers, for error messages."""
    return sorted(name for name in environ if name not in sent and name != "_" and _is_text(name))


def with_direct_loopback(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that bypasses HTTP proxies for local hosts."""
    variables = dict(environ)
    if not any(_PROXY.match(name) for name in variables):
        return variables
    said = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    hosts = [host for host in re.split(r"[,\s]+", said) if host]
    if "*" not in hosts:
        hosts += [host for host in _LOOPBACK if host not in hosts]
    # Programs differ in which of the two spellings they read.
    variables["no_proxy"] = variables["NO_PROXY"] = ",".join(hosts)
    return variables


def _is_of_a_session(name: str) -> bool:
    if _FOLDERS.fullmatch(name):
        return False
    return name in _OF_A_SESSION or name.startswith(_OF_A_SESSION_PREFIXES)


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or its value."""
    if _PROXY.match(name):
        return False
    if _PASSWORD_IN_URL.match(value):
        return True
    # The path of a secret file is not itself secret: GOOGLE_APPLICATION_CREDENTIALS.
    is_path = os.path.isabs(value) and os.path.exists(value)
    return _SECRET.search(name.upper()) is not None and not is_path


def _is_text(text: str) -> bool:
    """Return True if a text can be encoded as UTF-8, as all messages require."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
