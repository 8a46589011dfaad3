"""Known vulnerabilities of old versions of tritonserver, and a warning where others can reach them.

Source: NVIDIA's security bulletins for Triton Inference Server of August and September 2025, and three requests
that end the fetched one (docs/operations/security.md). This module does not follow later bulletins: users who bring
their own tritonserver have to read those themselves.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from pytriton.dispatcher.settings.declarations import DaemonConfig

#: The version of release 25.08, the first without the faults that are named here.
_MENDED_IN = (2, 60)
#: Of an unauthenticated client, over the inference ports.
CVES = ("CVE-2025-23310", "CVE-2025-23311", "CVE-2025-23316", "CVE-2025-23317")
#: Frontends that tritonserver's own options switch on; they listen on every interface.
_OTHER_FRONTENDS = ("sagemaker", "vertex-ai")


def warning(config: DaemonConfig, version: str | None, *, native: bool) -> str | None:
    """Say that others than this machine's users reach a tritonserver that they can harm; None when it is not so.

    Args:
        config: says which ports are served on which addresses
        version: tritonserver's, such as "2.51.0"; nothing is said about one that is not known
        native: the native front serves, which has none of the faults that clients can use without a token
    """
    ports = exposed(config)
    if native or not ports or not is_faulty(version):
        return None
    return (
        f"tritonserver {version} has published faults ({', '.join(CVES)} and others): whoever reaches it can end it "
        f"with one request, perhaps take it over. It listens beyond this machine: {', '.join(ports)}. Use 127.0.0.1, "
        "let only clients that you trust reach these ports, or bring a newer tritonserver: "
        "docs/operations/security.md says how."
    )


def is_faulty(version: str | None) -> bool:
    """Tell whether a version of tritonserver is one that the bulletins name."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return match is not None and (int(match[1]), int(match[2])) < _MENDED_IN


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


def _is_loopback(address: str) -> bool:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None)}
    except (OSError, UnicodeError):  # tritonserver will not find it either
        return False
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)
