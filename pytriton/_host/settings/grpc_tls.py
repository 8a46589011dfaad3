"""TLS of tritonserver's gRPC, for the daemon's own client; `tritonserver_options` switch it on.

tritonserver reads its certificate from the file of `grpc-server-cert`, so its client trusts just
that certificate (or the chain in the file), whoever signed it. The certificate is made out to the
host's public name, while the daemon connects to an address of this machine: it asks for the name
that stands in the certificate instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton._host.settings.declarations import DaemonConfig

#: What tritonserver takes for true.
_TRUE = ("true", "1")
#: OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: trust a certificate that is no authority's. Python has a
#: name for it since 3.10.
_PARTIAL_CHAIN = 0x80000


def uses_tls(config: DaemonConfig) -> bool:
    """Whether gRPC is served with TLS."""
    return config.allow_grpc and (_is_on(config, "grpc-use-ssl") or is_mutual(config))


def is_mutual(config: DaemonConfig) -> bool:
    """Whether clients have to show a certificate."""
    return config.allow_grpc and _is_on(config, "grpc-use-ssl-mutual")


def problems(config: DaemonConfig) -> list[str]:
    """Return what is missing for TLS, in words; nothing when gRPC is served without it."""
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
                f"{name} in tritonserver_options is {path!r}: tritonserver runs in a folder of the "
                "daemon, so the path has to be absolute"
            )
    if is_mutual(config) and not config.allow_http and config.grpc_client_cert is None:
        found.append(
            "with grpc-use-ssl-mutual and without allow_http, the daemon itself has to show "
            "tritonserver a certificate: set grpc_client_cert and grpc_client_key"
        )
    return found


async def channel(config: DaemonConfig, host: str, port: int) -> tuple[Any, list[tuple[str, Any]]]:
    """Return credentials of gRPC for tritonserver's endpoint, and the options that go with them.

    Raises:
        OSError: a file cannot be read, or nobody listens there.
        ssl.SSLError: who listens there does not show tritonserver's certificate.
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
    """Return the checked certificate of the listener, in the form of `SSLSocket.getpeercert`."""
    # Here: each command of pytriton-daemon reads settings, and would import them for that.
    import asyncio
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # which names there are is the question
    context.verify_flags |= _PARTIAL_CHAIN
    context.load_verify_locations(roots)
    context.set_alpn_protocols(["h2"])  # gRPC hangs up on others
    certificate, key = ours
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    _, writer = await asyncio.open_connection(host.strip("[]"), port, ssl=context)
    try:
        found: Mapping[str, Any] = writer.get_extra_info("peercert")
        return found
    finally:
        writer.transport.abort()  # there is nothing to say good-bye for


def _name(certificate: Mapping[str, Any]) -> str:
    """Return a name that the certificate is made out to."""
    names = certificate.get("subjectAltName", ())
    for kind in ("DNS", "IP Address"):
        for its_kind, name in names:
            if its_kind == kind:
                return str(name).replace("*", "tritonserver", 1)
    # Without names of its own kind, gRPC looks at the subject's common name, as of old.
    subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return str(subject.get("commonName", "localhost"))


def _is_on(config: DaemonConfig, name: str) -> bool:
    return str(config.tritonserver_options.get(name, "")).lower() in _TRUE
