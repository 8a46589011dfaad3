"""The certificate of the operations server."""

from __future__ import annotations

import ssl

from pytriton._host.settings.declarations import DaemonConfig

#: Of TLS 1.2, as the native frontend has them (`proxy_backend/front/net/tls.c`).
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class CertificateError(Exception):
    """The certificate cannot be used; says which, and why."""


def tls_context(config: DaemonConfig) -> ssl.SSLContext | None:
    """Return what the operations server shows its clients; None: it has no TLS.

    Raises:
        CertificateError: a file cannot be read, is none, or the two do not belong together.
    """
    certificate, key = config.operations_certificate, config.operations_key
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ciphers(_CIPHERS)
    try:
        # An encrypted key is refused: without a password of ours, OpenSSL would ask whoever sits at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            why = "they are no certificate and key (PEM) that belong together, or the key is encrypted"
        text = f"operations_certificate = {certificate}, operations_key = {key}: {why}"
        raise CertificateError(text) from error
    return context
