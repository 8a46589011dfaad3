"""The TLS certificate of the management server."""

from __future__ import annotations

import ssl

from pytriton._host.settings.declarations import DaemonConfig

#: For TLS 1.2, the same as in the native frontend (`proxy_backend/frontend/net/tls.c`).
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class CertificateError(Exception):
    """The certificate cannot be used; the text says which one and why."""


def tls_context(config: DaemonConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the management server; None if it does not use TLS.

    Raises:
        CertificateError: a file is unreadable or invalid, or certificate and key do not match.
    """
    certificate, key = config.management_certificate, config.management_key
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ciphers(_CIPHERS)
    try:
        # Reject an encrypted key: without a password, OpenSSL would prompt at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            why = "they are not a matching certificate and key (PEM), or the key is encrypted"
        text = f"management_certificate = {certificate}, management_key = {key}: {why}"
        raise CertificateError(text) from error
    return context
