"""`TlsOptions`: a client's TLS settings for https and grpcs."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any, Union

from pytriton._protocol.arguments import closest_keywords
from pytriton.client.exceptions import PyTritonClientValueError

__all__ = ["TlsOptions"]

_File = Union[str, "os.PathLike[str]", None]


@closest_keywords
@dataclass(frozen=True)
class TlsOptions:
    """TLS settings of a client: certificates and keys in PEM files.

    Args:
        ca_certificate: file with the CA certificates to trust; None: the system's trust store
        client_certificate: file with the client's certificate, if the server requires one
        client_key: file with the private key of the client's certificate

    Raises:
        PyTritonClientValueError: a file cannot be read, or only one of certificate and key is given

    Example:
        >>> TlsOptions(ca_certificate="ca.pem")                                # doctest: +SKIP
    """

    ca_certificate: _File = None
    client_certificate: _File = None
    client_key: _File = None

    def __post_init__(self) -> None:
        if (self.client_certificate is None) != (self.client_key is None):
            raise PyTritonClientValueError(
                "TlsOptions requires both client_certificate and client_key, or neither."
            )
        for name in ("ca_certificate", "client_certificate", "client_key"):
            _check_readable(name, getattr(self, name))

    def context(self, module: Any = ssl) -> Any:
        """Return the SSL context for https, created by the module `ssl` or by gevent's counterpart.

        Raises:
            PyTritonClientValueError: a file contains no certificate or key, or they do not match
        """
        try:
            context = module.create_default_context(cafile=_path(self.ca_certificate))
            if self.client_certificate is not None:
                context.load_cert_chain(self.client_certificate, self.client_key)
        except (ssl.SSLError, ValueError) as error:
            raise PyTritonClientValueError(f"Cannot use the files of {self}: {error}") from None
        return context

    def grpc_options(self) -> dict[str, str | None]:
        """Return the files as arguments for tritonclient's gRPC client."""
        return {
            "root_certificates": _path(self.ca_certificate),
            "certificate_chain": _path(self.client_certificate),
            "private_key": _path(self.client_key),
        }


def _path(file: _File) -> str | None:
    return None if file is None else os.fspath(file)


def _check_readable(name: str, file: _File) -> None:
    if file is None:
        return
    try:
        with open(file, "rb"):
            pass
    except (OSError, TypeError) as error:
        raise PyTritonClientValueError(
            f"TlsOptions: cannot read {name}={file!r}: {error}"
        ) from None
