"""gRPC with TLS: the daemon reaches its own tritonserver, whatever name the certificate has."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import trustme
from support.models.inference import Array, infer_once
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon
from tritonclient.utils import InferenceServerException

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import Options
from pytriton.decorators import batch
from pytriton.dispatcher.server.frontend import Unreached
from pytriton.dispatcher.server.frontends.triton_frontend import AdminClient


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


class Certificates:
    """The files of one server and one client, signed by one authority."""

    def __init__(self, authority: trustme.CA, folder: Path, names: Sequence[str]) -> None:
        server = authority.issue_cert(*names)
        client = authority.issue_cert("someone@example.test")
        self.root = folder / "root.pem"
        authority.cert_pem.write_to_path(str(self.root))
        for kind, issued in (("server", server), ("client", client)):
            # The certificate alone, as an authority sends it: without the authority's own.
            issued.cert_chain_pems[0].write_to_path(str(folder / f"{kind}.pem"))
            issued.private_key_pem.write_to_path(str(folder / f"{kind}.key"))
        self.client = {
            "private_key": f"{folder}/client.key",
            "certificate_chain": f"{folder}/client.pem",
        }
        self.options: Options = {
            "grpc-use-ssl": "true",
            "grpc-server-cert": f"{folder}/server.pem",
            "grpc-server-key": f"{folder}/server.key",
        }
        self.mutual: Options = {
            "grpc-use-ssl-mutual": "true",
            "grpc-server-cert": f"{folder}/server.pem",
            "grpc-server-key": f"{folder}/server.key",
            "grpc-root-cert": str(self.root),
        }


@batch
def _double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


def _infer(daemon: RunningDaemon, **tls: Any) -> Any:
    tensor = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    with tritonclient.grpc.InferenceServerClient(daemon.grpc, **tls) as client:
        return client.infer("double", [tensor], client_timeout=60).as_numpy("y").tolist()


@pytest.mark.parametrize("name", ["triton.example.test", "*.example.test", "192.0.2.7"])
def test_the_daemon_works_with_grpc_over_tls_only(
    name: str, authority: trustme.CA, tmp_path: Path
) -> None:
    """It loads models and probes its server, though it connects to 127.0.0.1."""
    files = Certificates(authority, tmp_path, [name])
    with RunningDaemon.start(
        allow_http=False,
        tritonserver_options=files.options,
        server_probe_interval_s=0.05,
    ) as daemon:
        before = daemon.client.status().server
        assert before.grpc_url.startswith("grpcs://127.0.0.1:")
        model = daemon.client.register(_double, "double", X, Y, progress=False)
        assert model.grpc_url == before.grpc_url
        shown = name.replace("*", "any")
        override = [("grpc.ssl_target_name_override", shown)]
        answer = _infer(daemon, ssl=True, root_certificates=str(files.root), channel_args=override)
        assert answer == [[2, 2]]
        with pytest.raises(InferenceServerException):
            _infer(daemon)  # without TLS
        daemon.client.unregister("double")
        assert daemon.client.status().server.pid == before.pid


def test_grpc_over_tls_beside_plain_http(authority: trustme.CA, tmp_path: Path) -> None:
    """The daemon uses HTTP, which is unchanged, so it needs no certificate."""
    files = Certificates(authority, tmp_path, ["localhost", "127.0.0.1"])
    with RunningDaemon.start(tritonserver_options=files.mutual) as daemon:
        daemon.client.register(_double, "double", X, Y, progress=False)
        ones = np.ones((1, 2), np.float32)
        assert infer_once(daemon, "double", {"x": ones})["y"].tolist() == [[2, 2]]
        trust = {"ssl": True, "root_certificates": str(files.root)}
        with pytest.raises(InferenceServerException):
            _infer(daemon, **trust)  # shows no certificate
        assert _infer(daemon, **trust, **files.client) == [[2, 2]]


def test_the_daemon_works_with_mutual_tls_only(authority: trustme.CA, tmp_path: Path) -> None:
    """The daemon administers the native frontend over its private socket, without a certificate."""
    files = Certificates(authority, tmp_path, ["triton.example.test"])
    with RunningDaemon.start(
        allow_http=False, frontend="native", tritonserver_options=files.mutual
    ) as daemon:
        daemon.client.register(_double, "double", X, Y, progress=False)
        assert [model.name for model in daemon.client.models()] == ["double"]


def test_the_token_is_not_sent_to_a_server_with_another_certificate(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """Another process may have taken the port."""
    (tmp_path / "other").mkdir()
    files = Certificates(authority, tmp_path, ["triton.example.test"])
    Certificates(trustme.CA(), tmp_path / "other", ["triton.example.test"])
    config = DaemonConfig(allow_http=False, tritonserver_options=files.options)

    async def bytes_received(folder: Path) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        received = 0

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            received += len(await reader.read(1 << 16))
            writer.close()

        server = await asyncio.start_server(count, "127.0.0.1", 0, ssl=context)
        client = AdminClient(config, 1, server.sockets[0].getsockname()[1])
        try:
            with pytest.raises(Unreached):
                await client.is_live()
        finally:
            await client.close()
            server.close()
        return received

    assert asyncio.run(bytes_received(tmp_path)) > 0
    assert asyncio.run(bytes_received(tmp_path / "other")) == 0
