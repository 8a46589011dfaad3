"""Published faults of tritonserver's versions, and a warning where others can reach them.

advisories.json beside this file lists them: NVIDIA's security bulletins for Triton Inference Server, up to the date
that it names. Whoever brings a tritonserver has to read later bulletins. Three requests that end the fetched version
are in docs/operations/security.md.
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

#: Frontends that tritonserver's own options switch on; they listen on every interface.
_OTHER_FRONTENDS = ("sagemaker", "vertex-ai")
_FILE = Path(__file__).with_suffix(".json")
#: So many faults are named in a warning.
_NAMED = 4

Part = Literal[
    "front",
    "python-backend",
    "model-control",
    "dali-backend",
    "tensorrt-backend",
    "mlflow-plugin",
    "unspecified",
]


class Advisory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published fault."""

    id: str  #: its CVE number
    bulletin: int  #: the number of NVIDIA's bulletin
    score: float  #: CVSS 3.1, as NVIDIA gives it
    mended_in: str  #: the first release without it, by the name of its container, such as "25.07"
    part: Part  #: what has it
    what: str


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of advisories.json."""

    about: str
    parts: dict[Part, str]  #: who can reach a fault in each part
    last_bulletin: str  #: the date of the newest bulletin that is in it
    releases: dict[str, str]  #: the name of a container -> the version of tritonserver in it
    advisories: tuple[Advisory, ...]


@functools.cache
def catalogue() -> Catalogue:
    """Return what is known. The file is read once, when somebody asks."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Catalogue)


def warning(config: DaemonConfig, version: str | None, *, native: bool) -> str | None:
    """Say that others than this machine's users reach a tritonserver that they can harm; None when it is not so.

    Args:
        config: says which ports are served on which addresses
        version: tritonserver's, such as "2.51.0"; nothing is said about one that is not known
        native: the native front serves, which has none of the faults of NVIDIA's frontends
    """
    ports = exposed(config)
    if native or not ports or not is_faulty(version):
        return None
    return (
        f"tritonserver {version} has published faults ({named(faults(version))}): whoever reaches it can end it "
        f"with one request, perhaps take it over. It listens beyond this machine: {', '.join(ports)}. Use 127.0.0.1, "
        "let only clients that you trust reach these ports, or bring a newer tritonserver."
    )


def is_faulty(version: str | None) -> bool:
    """True if the bulletins name a fault of this version of tritonserver."""
    return bool(faults(version))


def faults(version: str | None) -> list[Advisory]:
    """Return the published faults of a version of tritonserver, the worst first; none of one that is not known."""
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
    """Name the worst of some faults, and count the others."""
    names = ", ".join(one.id for one in found[:_NAMED])
    return f"{names} and {len(found) - _NAMED} others" if len(found) > _NAMED else names


def exposed(config: DaemonConfig) -> list[str]:
    """Return the ports that other machines may reach, each as "http_address 0.0.0.0"."""
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
    except (OSError, UnicodeError):  # tritonserver will not find it either
        return False
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)
