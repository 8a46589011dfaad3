"""TLS for the daemon's own gRPC client of tritonserver; `tritonserver_options` enable it.

tritonserver reads its certificate from the file of `grpc-server-cert`, so the client trusts exactly that
certificate (or the chain in the file), no matter who signed it. The certificate is issued to the host's public name,
but the daemon connects to an address of this machine. The client therefore expects the name in the certificate.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton._host.settings.declarations import DaemonConfig

#: Values that tritonserver reads as true.
_TRUE = ("true", "1")
#: OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: trust a certificate that is not a CA's. Python has a
#: name for it since 3.10.
_PARTIAL_CHAIN = 0x80000


def uses_tls(config: DaemonConfig) -> bool:
    """Return whether gRPC is served with TLS."""
    return config.allow_grpc and (_is_on(config, "grpc-use-ssl") or is_mutual(config))


def is_mutual(config: DaemonConfig) -> bool:
    """Return whether clients must present a certificate."""
    return config.allow_grpc and _is_on(config, "grpc-use-ssl-mutual")


def problems(config: DaemonConfig) -> list[str]:
    """Return the problems of the TLS options, as text; empty if gRPC is served without TLS."""
    if not uses_tls(config):
        return []
    needed = ["grpc-server-cert", "grpc-server-key"]
    needed += ["grpc-root-cert"] if is_mutual(config) else []
    found = []
    for name in needed:
        path = config.tritonserver_options.get(name)
        if path is None:
            found.append(f"gRPC with TLS needs {name} in tritonserver_options: the path of a file")
        elif not Path(str(path)).is_absolute():
            found.append(
                f"{name} in tritonserver_options is {path!r}, but must be an absolute path: tritonserver runs in a "
                "directory of the daemon"
            )
    if is_mutual(config) and not config.allow_http and config.grpc_client_cert is None:
        found.append(
            "with grpc-use-ssl-mutual and without allow_http, the daemon itself must present a certificate to "
            "tritonserver: set grpc_client_cert and grpc_client_key"
        )
    return found


async def channel(config: DaemonConfig, host: str, port: int) -> tuple[Any, list[tuple[str, Any]]]:
    """Return gRPC credentials for tritonserver's endpoint, and the channel options that belong to them.

    Raises:
        OSError: a file cannot be read, or the connection fails.
        ssl.SSLError: the listener does not present tritonserver's certificate.
    """
    grpc = importlib.import_module("grpc")  # which ships no types
    roots = Path(str(config.tritonserver_options["grpc-server-cert"]))
    ours = (config.grpc_client_cert, config.grpc_client_key)
    chain, key = (None if path is None else Path(path).read_bytes() for path in ours)
    credentials = grpc.ssl_channel_credentials(roots.read_bytes(), key, chain)
    name = _name(await _certificate(roots, ours, host, port))
    return credentials, [("grpc.ssl_target_name_override", name)]


async def _certificate(
    roots: Path, ours: tuple[str | None, str | None], host: str, port: int
) -> Mapping[str, Any]:
    """Return the verified certificate of the listener, in the form of `SSLSocket.getpeercert`."""
    # Imported here because every command of pytriton-daemon imports this module.
    import asyncio
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the names in the certificate are not known yet
    context.verify_flags |= _PARTIAL_CHAIN
    context.load_verify_locations(roots)
    context.set_alpn_protocols(["h2"])  # gRPC closes other connections
    certificate, key = ours
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    _, writer = await asyncio.open_connection(host.strip("[]"), port, ssl=context)
    try:
        found: Mapping[str, Any] = writer.get_extra_info("peercert")
        return found
    finally:
        writer.transport.abort()  # no need for a clean TLS shutdown


def _name(certificate: Mapping[str, Any]) -> str:
    """Return a name that the certificate is issued to."""
    names = certificate.get("subjectAltName", ())
    for kind in ("DNS", "IP Address"):
        for its_kind, name in names:
            if its_kind == kind:
                return str(name).replace("*", "tritonserver", 1)
    # gRPC falls back to the subject's common name if there are no alternative names.
    subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return str(subject.get("commonName", "localhost"))


def _is_on(config: DaemonConfig, name: str) -> bool:
    return str(config.tritonserver_options.get(name, "")).lower() in _TRUE
