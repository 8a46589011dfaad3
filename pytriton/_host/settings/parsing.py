"""Validators of settings, which parse values from any source: text or a TOML value.

A `Kind` converts the value from a source to the value of the setting, or raises ValueError with a text
that completes "http_port = 'x': ...". Parsing a parsed value returns it unchanged.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytriton._protocol import arguments

TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@,\s]+")
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
#: Minimum length of a secret in the settings, so that it cannot be guessed.
MIN_SECRET_LENGTH = 16


def nearest(name: object, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ` (did you mean X?)` for the known name most similar to `name`, or an empty string."""
    import difflib  # takes 2 ms, and is rarely needed

    close = difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def toml_table(file: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        OSError: the file cannot be read.
        ValueError: its content is not TOML, or not UTF-8.
    """
    # The parser takes 4 ms to import, and most daemons and commands read no TOML file.
    if sys.version_info >= (3, 11):
        import tomllib  # novm
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(file.read_bytes().decode("utf-8"))
    return table


@dataclass(frozen=True)
class Kind:
    """A validator of one kind of value. `allowed` describes the valid values."""

    allowed: str
    _read: Callable[[object], Any]
    #: A path: relative ones start from the location of the source.
    is_path: bool = False
    #: A boolean, whose flag needs no value.
    is_switch: bool = False
    #: Never shown, neither in errors nor by --print-config.
    is_secret: bool = False
    #: A list, whose flag may be repeated.
    is_list: bool = False

    def read(self, raw: object) -> Any:
        """Parse a value (text, or a TOML value).

        Raises:
            ValueError: the value is not allowed; the text contains it.
        """
        return self._read(raw)

    def resolve_paths(self, value: Any, base: Path) -> Any:
        """Return a parsed value with its relative paths resolved against `base`."""
        if not self.is_path:
            return value
        if self.is_list:
            return tuple(one if "://" in one else str(base / one) for one in value)
        return str(base / value)

    def refusal(self, raw: object) -> ValueError:
        """Return the error for an invalid value. It describes the allowed values."""
        given = "the value (not shown)" if self.is_secret else repr(raw)
        return ValueError(f"{given} is not {self.allowed}")


def _kind(allowed: str, read: Callable[[object], Any], *, is_secret: bool = False) -> Kind:
    """Return a Kind for a parser that raises ValueError, TypeError or OverflowError for invalid values."""

    def checked(raw: object) -> Any:
        try:
            return read(raw)
        except (ValueError, TypeError, OverflowError):
            raise kind.refusal(raw) from None

    kind = Kind(allowed, checked, is_secret=is_secret)
    return kind


def _no_bool(raw: object) -> Any:
    if isinstance(raw, bool):  # an int in Python
        raise ValueError
    return raw


def boolean() -> Kind:
    """Return a validator for booleans. Text may also be yes, no, on, off, 1 or 0."""

    def read(raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        word = str(raw).strip().lower()
        if word in TRUE:
            return True
        if word in FALSE:
            return False
        raise ValueError

    kind = _kind(f"one of {', '.join(TRUE)} or {', '.join(FALSE)}", read)
    return replace(kind, is_switch=True)


def integer(low: int, high: int | None = None) -> Kind:
    """Return a validator for whole numbers from `low` to `high` (None: no limit)."""

    def read(raw: object) -> int:
        if not isinstance(_no_bool(raw), (int, str)):
            raise ValueError
        number = int(raw)  # type: ignore[call-overload]
        if number < low or (high is not None and number > high):
            raise ValueError
        return int(number)

    span = f"of {low} or more" if high is None else f"from {low} to {high}"
    return _kind(f"a whole number {span}", read)


def number(low: float) -> Kind:
    """Return a validator for finite numbers ≥ `low`."""

    def read(raw: object) -> float:
        if not isinstance(_no_bool(raw), (int, float, str)):
            raise ValueError
        value = float(raw)  # type: ignore[arg-type]
        if not math.isfinite(value) or value < low:
            raise ValueError
        return value

    return _kind(f"a number of {low:g} or more", read)


def size() -> Kind:
    """Return a validator for sizes in bytes, such as 4096, 64MiB or 1.5GB. kB is 1000 bytes, KiB is 1024."""
    return _kind(arguments.ALLOWED, arguments.parse_size)


def budget() -> Kind:
    """Return a validator for sizes in bytes and percentages, such as 8GiB or 60%."""

    def read(raw: object) -> str:
        text = str(_no_bool(raw)).strip()
        if text.endswith("%"):
            if not 0 < float(text[:-1]) <= 100:
                raise ValueError
        elif not arguments.parse_size(text):
            raise ValueError
        return text

    return _kind(f"{arguments.ALLOWED}, or a share such as 60%", read)


def budget_of(text: str, whole: int) -> int:
    """Return a budget in bytes; percentages are relative to `whole`."""
    if text.endswith("%"):
        return int(float(text[:-1]) / 100 * whole)
    return arguments.parse_size(text)


def choice(*names: str) -> Kind:
    """Return a validator that accepts any of the given words, ignoring case."""

    def read(raw: object) -> str:
        word = str(raw).strip().lower()
        if word not in names:
            raise ValueError
        return word

    return _kind(f"one of {', '.join(names)}", read)


def text() -> Kind:
    """Return a validator for non-empty words without white space."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not raw.strip() or len(raw.split()) > 1:
            raise ValueError
        return raw.strip()

    return _kind("a word without white space", read)


def variable() -> Kind:
    """Return a validator for selections of environment variables: NAME, NAME=VALUE, or * for all."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw[:1] in ("", "=") or "\0" in raw:
            raise ValueError
        return raw

    return _kind("NAME, NAME=VALUE or *", read)


def secret() -> Kind:
    """Return a validator for tokens of characters that are safe in headers and URLs."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not _SECRET.fullmatch(raw):
            raise ValueError
        return raw

    return _kind("16 to 512 letters, digits, or `-._~+/=`", read, is_secret=True)


def names(*known: str) -> Kind:
    """Return a validator for lists of known names, which are separated by commas or spaces in text."""

    def read(raw: object) -> tuple[str, ...]:
        words = raw.replace(",", " ").split() if isinstance(raw, str) else raw
        if not isinstance(words, (list, tuple)):
            raise kind.refusal(raw)
        if list(words) == ["none"]:
            return ()
        for word in words:
            if word not in known:
                raise ValueError(f"{word!r} is not one of {', '.join(known)}{nearest(word, known)}")
        return tuple(dict.fromkeys(words))

    kind = Kind(f"a list of {', '.join(known)}; `[]`, or the text `none`, for an empty list", read)
    return kind


def address() -> Kind:
    """Return a validator for HOST:PORT. HOST is an IP address (IPv6 in brackets), or * for every interface."""

    def read(raw: object) -> str:
        host, colon, port = str(raw).strip().rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and bare == host):
            raise ValueError
        if host != "*":
            ipaddress.ip_address(bare)
        return f"{host}:{int(port)}"

    return _kind("an IP address and a port, such as 127.0.0.1:9440 or [::1]:9440", read)


def origin() -> Kind:
    """Return a validator for origins of web pages. The result is as browsers send it: in lower case, without the default port.

    * allows all origins, null is the origin of local files.
    """

    def read(raw: object) -> str:
        text = str(raw).strip().lower().rstrip("/")
        if text not in ("*", "null") and not _ORIGIN.fullmatch(text):
            raise ValueError
        for scheme, port in (("https", ":443"), ("http", ":80")):
            if text.startswith(f"{scheme}://"):
                text = text.removesuffix(port)
        return text

    return _kind(
        "the origin of a web page without a path, such as https://chat.example, or *", read
    )


def path() -> Kind:
    """Return a validator for paths; `~` is the home directory."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not raw or "\0" in raw:
            raise ValueError
        return os.path.expanduser(raw)

    return Kind("a path", _kind("a path", read).read, is_path=True)


def several(kind: Kind) -> Kind:
    """Return a validator for lists of values that `kind` accepts. Text is split as a shell would split it."""

    def read(raw: object) -> tuple[Any, ...]:
        words = shlex.split(raw) if isinstance(raw, str) else raw
        if not isinstance(words, (list, tuple)):
            raise ValueError
        return tuple(kind.read(word) for word in words)

    made = _kind(f"a list in which each value is {kind.allowed}", read)
    return replace(made, is_path=kind.is_path, is_list=True)


def optional(kind: Kind) -> Kind:
    """Return a validator that also accepts None (not set)."""
    return replace(kind, _read=lambda raw: None if raw is None else kind.read(raw))
