"""TLS for the gRPC connection from the daemon to tritonserver, if `tritonserver_options` enable TLS.

tritonserver reads its certificate from the file of `grpc-server-cert`, so the client trusts exactly that
certificate (or the chain in the file). It ignores the issuer and the name in the certificate: that is the host name
that clients use, but the daemon connects to an address of this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytriton._host.settings.frontend_choice import chosen

if TYPE_CHECKING:
    import ssl

    from pytriton._host.settings.declarations import DaemonConfig

#: Values that tritonserver reads as true.
_TRUE = ("true", "1")
#: OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: trust a certificate that is not a CA's. Python has a
#: name for it since 3.10.
_PARTIAL_CHAIN = 0x80000


def uses_tls(config: DaemonConfig) -> bool:
    """Return True if gRPC is served with TLS."""
    return config.allow_grpc and (_is_on(config, "grpc-use-ssl") or is_mutual(config))


def is_mutual(config: DaemonConfig) -> bool:
    """Return True if gRPC clients must present a certificate."""
    return config.allow_grpc and _is_on(config, "grpc-use-ssl-mutual")


def problems(config: DaemonConfig) -> list[str]:
    """Return descriptions of invalid TLS options; [] if all are valid or gRPC is served without TLS."""
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
    if is_mutual(config) and not config.allow_http and chosen(config) != "native":
        found.append(
            "with grpc-use-ssl-mutual and without allow_http, the daemon could not reach NVIDIA's tritonserver, since it "
            "has no client certificate: set frontend to native, or allow_http to true"
        )
    return found


def client_context(config: DaemonConfig) -> ssl.SSLContext:
    """Return the TLS context for a client that trusts only tritonserver's certificate.

    Raises:
        OSError: a file cannot be read.
        ssl.SSLError: a file contains no certificate or key.
    """
    import ssl  # here because every command of pytriton-daemon imports this module

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate names the host as clients know it
    context.verify_flags |= _PARTIAL_CHAIN
    context.load_verify_locations(str(config.tritonserver_options["grpc-server-cert"]))
    context.set_alpn_protocols(["h2"])  # gRPC closes other connections
    return context


def _is_on(config: DaemonConfig, name: str) -> bool:
    return str(config.tritonserver_options.get(name, "")).lower() in _TRUE
