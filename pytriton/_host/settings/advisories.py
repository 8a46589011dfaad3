"""Published vulnerabilities in tritonserver, and a warning if other machines can reach an affected one.

advisories.json, in the same directory, lists NVIDIA's security bulletins for Triton Inference Server up to its date.
Users who bring their own tritonserver must read later bulletins themselves. docs/operations/security.md has three
requests that crash the downloaded version.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from pathlib import Path
from typing import Literal

import msgspec

from pytriton._host.settings.declarations import DaemonConfig

#: Frontends enabled by tritonserver's own options; they listen on every interface.
_OTHER_FRONTENDS = ("sagemaker", "vertex-ai")
_FILE = Path(__file__).with_suffix(".json")
#: Number of vulnerabilities named in a warning.
_NAMED = 4

Part = Literal[
    "frontend",
    "python-backend",
    "model-control",
    "dali-backend",
    "tensorrt-backend",
    "mlflow-plugin",
    "unspecified",
]


class Advisory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published vulnerability."""

    id: str  #: its CVE number
    bulletin: int  #: the number of NVIDIA's bulletin
    score: float  #: CVSS 3.1, as NVIDIA gives it
    mended_in: str  #: the first fixed release, by its container's name, such as "25.07"
    part: Part  #: the affected part
    what: str


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of advisories.json."""

    about: str
    parts: dict[Part, str]  #: who can reach a vulnerability in each part
    last_bulletin: str  #: the date of the newest bulletin included
    releases: dict[str, str]  #: name of a container -> the version of tritonserver in it
    advisories: tuple[Advisory, ...]


@functools.cache
def catalogue() -> Catalogue:
    """Return the content of advisories.json, which is read on the first call."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Catalogue)


def warning(config: DaemonConfig, version: str | None, *, native: bool) -> str | None:
    """Return a warning if other machines can reach an affected tritonserver, else None.

    Args:
        config: the settings, with the served ports and their addresses
        version: tritonserver's version, such as "2.51.0"; None if it is unknown, which causes no warning
        native: whether the native frontend is used, which lacks the vulnerabilities of NVIDIA's frontends
    """
    ports = exposed(config)
    if native or not ports or not is_faulty(version):
        return None
    return (
        f"tritonserver {version} has published vulnerabilities ({named(faults(version))}): anyone who can reach it can "
        f"crash it with one request, and perhaps take it over. Other machines can reach {', '.join(ports)}. Use "
        "127.0.0.1, restrict these ports to trusted clients, or upgrade tritonserver."
    )


def is_faulty(version: str | None) -> bool:
    """Return True if the bulletins list a vulnerability in a version of tritonserver."""
    return bool(faults(version))


def faults(version: str | None) -> list[Advisory]:
    """Return the published vulnerabilities of a version of tritonserver, most severe first; [] if it is unknown."""
    found = _parsed(version or "")
    if found is None:
        return []
    known = catalogue()
    open_ones = [
        one
        for one in known.advisories
        if found < (_parsed(known.releases[one.mended_in]) or (0, 0, 0))
    ]
    return sorted(open_ones, key=lambda one: (-one.score, one.id))


def named(found: list[Advisory]) -> str:
    """Return a text that names the most severe vulnerabilities and counts the others."""
    names = ", ".join(one.id for one in found[:_NAMED])
    return f"{names} and {len(found) - _NAMED} others" if len(found) > _NAMED else names


def exposed(config: DaemonConfig) -> list[str]:
    """Return the endpoints that other machines can reach, each as "http_address 0.0.0.0"."""
    found = [
        f"{name}_address {address}"
        for name in ("http", "grpc", "metrics")
        for address in (str(getattr(config, f"{name}_address")),)
        if getattr(config, f"allow_{name}") and not _is_loopback(address)
    ]
    return found + [
        f"{name} on every interface"
        for name in _OTHER_FRONTENDS
        if config.tritonserver_options.get(f"allow-{name}") == "true"
    ]


def _parsed(version: str) -> tuple[int, int, int] | None:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _is_loopback(address: str) -> bool:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None)}
    except (OSError, UnicodeError):  # tritonserver cannot resolve it either
        return False
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)
