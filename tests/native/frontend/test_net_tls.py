"""TLS of net/ with an echo server (net_echo.c), under both sanitizers."""

from __future__ import annotations

import ssl
from contextlib import closing
from pathlib import Path
from typing import Optional

import pytest
import trustme
from support.frontend.echo import EchoServer, Start, ask, echoes, ends, reset, take

_BIG = 20_000_000  # more than any socket takes at once


class Certificates:
    """Certificates of a server and a client, signed by one authority, which the client trusts."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("localhost")
        self.client = authority.issue_cert("client@example.org")
        self.certificate, self.key, self.root = (folder / name for name in ("cert", "key", "root"))
        server.cert_chain_pems[0].write_to_path(self.certificate)
        server.private_key_pem.write_to_path(self.key)
        authority.cert_pem.write_to_path(self.root)

    def context(self, protocols: Optional[list[str]] = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.root))
        context.set_alpn_protocols(["echo"] if protocols is None else protocols)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def secured(server: EchoServer, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(server.connect(), server_hostname="localhost")


@pytest.mark.parametrize("ciphers", ["AES256-SHA256", "AES128-GCM-SHA256", "ECDHE+AES+SHA256"])
def test_ciphers_without_forward_secrecy_or_authentication_are_refused(
    start: Start, certificates: Certificates, ciphers: str
) -> None:
    """With static RSA, the key decrypts recorded traffic; CBC has been broken more than once."""
    server = start(f"tls={certificates.certificate},{certificates.key}")
    context = certificates.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    with pytest.raises(ssl.SSLError):
        secured(server, context)
    context.set_ciphers("ECDHE+AESGCM")
    with closing(secured(server, context)) as connection:
        assert echoes(connection)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_carries_all_kinds_of_responses(
    start: Start, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    server = start(f"tls={certificates.certificate},{certificates.key}", loops=2)
    context = certificates.context()
    context.minimum_version = context.maximum_version = version
    with closing(secured(server, context)) as connection:
        assert connection.selected_alpn_protocol() == "echo"
        ask(connection, "who")
        assert take(connection, 4) == b"tls "
        take(connection, len("127.0.0.1:\n") + len(str(connection.getsockname()[1])))
        for how in ("write", "keep", "thread"):
            ask(connection, f"{how} {_BIG}")
            assert take(connection, _BIG) == b"x" * _BIG
        ask(connection, f"read {_BIG}")
        connection.sendall(b"y" * _BIG)
        assert take(connection, 5) == b"read\n"
        ask(connection, "finish 1000000")
        assert take(connection, 1_000_001) == b"x" * 1_000_000
    server.end()
    assert server.refused == {}


def test_tls_refuses_other_protocols(start: Start, certificates: Certificates) -> None:
    server = start(f"tls={certificates.certificate},{certificates.key}")
    with closing(server.connect()) as plain:
        ask(plain, "echo hello")
        assert b"hello" not in take(plain, 100)
    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        secured(server, certificates.context(["h9"]))
    with closing(secured(server, certificates.context([]))) as without:
        assert without.selected_alpn_protocol() is None
        assert echoes(without)
    server.end()
    assert server.refused == {"handshake": 2}


def test_a_slow_handshake_times_out(start: Start, certificates: Certificates) -> None:
    server = start(f"tls={certificates.certificate},{certificates.key}", "handshake_s=0.2")
    with closing(server.connect()) as connection:
        assert ends(connection)
    server.end()
    assert server.refused == {"handshake_time": 1}


def test_mutual_tls(start: Start, certificates: Certificates) -> None:
    server = start(f"tls={certificates.certificate},{certificates.key},{certificates.root}")
    context = certificates.context()
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        closing(secured(server, context)) as stranger,
    ):
        echoes(stranger)
    certificates.client.configure_cert(context)
    with closing(secured(server, context)) as friend:
        assert echoes(friend)
    server.end()
    assert server.refused == {"handshake": 1}


def test_vanished_tls_clients_leak_nothing(start: Start, certificates: Certificates) -> None:
    server = start(f"tls={certificates.certificate},{certificates.key}", loops=2)
    context = certificates.context()
    for number in range(20):
        connection = secured(server, context)
        ask(connection, ("thread 3000000", "write 5000000", "keep 5000000", "echo x")[number % 4])
        reset(connection)
    with closing(secured(server, context)) as connection:
        assert echoes(connection)
    server.end()


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("/nowhere/cert", None, "the certificate cannot be read from /nowhere/cert"),
        (None, "/nowhere/key", "the key cannot be read from /nowhere/key"),
    ],
)
def test_unreadable_certificate_files_are_reported(
    start: Start,
    certificates: Certificates,
    certificate: Optional[str],
    key: Optional[str],
    said: str,
) -> None:
    files = f"{certificate or certificates.certificate},{key or certificates.key}"
    assert said in start(f"tls={files}").first_line


def test_missing_openssl_is_reported(start: Start, certificates: Certificates) -> None:
    server = start("ssl=/nowhere/libssl.so", f"tls={certificates.certificate},{certificates.key}")
    assert server.first_line.startswith("TLS needs OpenSSL 3: /nowhere/libssl.so")
