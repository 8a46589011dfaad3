"""Where the management server listens and whom it serves, and what failures leave; without starting a thread."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import trustme
from aiohttp import web
from fakes.virtual_time import VirtualLoop
from support.ports import lasting_port

from pytriton._host.ports import PortError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.telemetry.http import management_server
from pytriton.dispatcher.telemetry.http.management import CertificateError, Management, tls_context
from pytriton.dispatcher.telemetry.http.management_server import ManagementServer

ANYWHERE = "127.0.0.1:0"


class Thread:
    """Replaces the serving thread: it only keeps the sockets."""

    made: ClassVar[list[Thread]] = []

    def __init__(self, routes: object, sockets: list[socket.socket], tls: object) -> None:
        self.sockets, self.tls = sockets, tls
        self.made.append(self)

    def stop(self) -> None:
        for one in self.sockets:
            one.close()


class Place:
    """A runtime directory, and the parts of management servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rundir = RuntimeDir(folder / "run")
        self.rundir.create()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.metrics: Any = SimpleNamespace(
            snapshot=self._report, scrape=self._report, otlp_exports=Counter()
        )
        self.hangs = False

    async def _report(self) -> str:
        if self.hangs:
            await asyncio.Event().wait()
        return "figures"

    def requests(self, name: str) -> Any:
        if name != "m":
            raise RemoteFailure(ErrorKind.NOT_FOUND, "no such model")
        return "requests of m"

    async def explain(self, name: str) -> Any:
        return f"explanation, {self.requests(name)}"

    def arguments(self, **settings: Any) -> Any:
        config = DaemonConfig(runtime_dir=str(self.rundir.path), **settings)
        return (
            config, self.rundir, self.metrics, lambda: "status", self.requests, self.explain,
            lambda asked: ["asked"] if asked else [],
        )  # fmt: skip

    def server(self, **settings: Any) -> ManagementServer:
        return ManagementServer(*self.arguments(**settings))

    def started(self, **settings: Any) -> ManagementServer:
        server = self.server(**settings)
        self.start(server)
        return server

    def start(self, server: ManagementServer) -> None:
        self.loop.ask(lambda: server.start(tls_context(server._config)))

    def certificate(self) -> dict[str, str]:
        own = trustme.CA().issue_cert("localhost")
        shown, key = self.folder / "shown.pem", self.folder / "key.pem"
        own.cert_chain_pems[0].write_to_path(shown)
        own.private_key_pem.write_to_path(key)
        return {"management_certificate": str(shown), "management_key": str(key)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(management_server, "ServerThread", Thread)
    monkeypatch.setattr(Thread, "made", [])
    one = Place(tmp_path)
    yield one
    for thread in Thread.made:
        thread.stop()
    one.loop.close()
    asyncio.set_event_loop(None)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    ("settings", "urls"),
    [
        ({}, []),
        ({"management_address": ANYWHERE}, ["http://127.0.0.1:PORT"]),
        ({"management_address": "*:0"}, ["http://0.0.0.0:PORT"]),
        ({"management_address": "127.0.0.2:0"}, ["http://127.0.0.2:PORT"]),
        ({"management_address": ANYWHERE, "certificate": True}, ["https://127.0.0.1:PORT"]),
        ({"management_unix_socket": "FOLDER/o"}, ["unix:FOLDER/o"]),
        (
            {"management_address": ANYWHERE, "management_unix_socket": "FOLDER/o"},
            ["http://127.0.0.1:PORT", "unix:FOLDER/o"],
        ),
    ],
)
def test_the_listen_address_is_reported_and_handed_over(
    place: Place, settings: dict[str, Any], urls: list[str]
) -> None:
    for name, value in settings.items():
        settings[name] = str(value).replace("FOLDER", str(place.folder))
    if settings.pop("certificate", None):
        settings |= place.certificate()
    server = place.started(**settings)
    assert len(Thread.made) == bool(urls)
    sockets = Thread.made[0].sockets if urls else []
    reported = [url.replace("FOLDER", str(place.folder)) for url in urls]
    if reported and "PORT" in reported[0]:
        reported[0] = reported[0].replace("PORT", str(sockets[0].getsockname()[1]))
    assert server.urls == reported
    assert server.descriptors == [one.fileno() for one in sockets]
    next_one = place.server(**settings)
    place.loop.ask(lambda: next_one.start(None, [one.detach() for one in sockets]))
    assert next_one.urls == reported
    place.loop.run(next_one.stop())
    assert not (place.folder / "o").exists()


@pytest.mark.parametrize("trouble", ["no key", "not its key", "unix socket"])
def test_a_failed_start_closes_all_sockets(place: Place, trouble: str) -> None:
    port = lasting_port()
    settings: dict[str, Any] = {"management_address": f"127.0.0.1:{port}"}
    if trouble == "unix socket":
        settings["management_unix_socket"] = str(place.folder / "missing" / "o")
    else:
        settings |= place.certificate()
        key = Path(settings["management_key"])
        key.unlink()
        if trouble == "not its key":
            trustme.CA().issue_cert("other").private_key_pem.write_to_path(key)
    server = place.server(**settings)
    expected = PortError if trouble == "unix socket" else CertificateError
    with pytest.raises(expected):
        place.start(server)
    assert (server.urls, server.descriptors, Thread.made) == ([], [], [])
    assert is_free(port)


def test_a_server_that_cannot_start_has_an_exit_code(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        management = Management(*place.arguments(management_address=address))
        assert place.loop.ask(management.open) == ExitCode.PORT_IN_USE
    files = place.certificate()
    Path(files["management_certificate"]).write_text("none")
    management = Management(*place.arguments(management_address=ANYWHERE, **files))
    assert place.loop.ask(management.open) == ExitCode.USAGE
    assert (management.urls, management.descriptors) == ([], [])
    place.loop.run(management.close())


@pytest.mark.parametrize("settings", [{}, {"management_address": ANYWHERE}])
def test_the_server_starts_only_if_configured(place: Place, settings: dict[str, Any]) -> None:
    management = Management(*place.arguments(**settings))
    assert place.loop.ask(management.open) is None
    assert len(Thread.made) == len(management.urls) == len(management.descriptors) == len(settings)
    place.loop.run(management.close())


# ── whom it answers ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("Bearer the token", 200),
        ("", 401),
        ("Bearer ", 401),
        ("Bearer the token ", 401),
        ("the token", 401),
        ("Bearer other", 401),
        ("Bearer \udce9\U0001f600", 401),  # invalid text, and text outside of latin-1
    ],
)
def test_the_access_token_grants_access(place: Place, shown: str, status: int) -> None:
    place.rundir.access_token_file.write_text("the token\n")
    server = place.server(management_require_token=True)
    assert asked(place, server, shown) == status
    assert asked(place, place.server(), shown) == 200  # it is not asked for
    place.rundir.access_token_file.write_text("\n")  # the disk was full
    assert asked(place, server, "Bearer ") == 401
    place.rundir.access_token_file.unlink()
    assert asked(place, server, shown) == 401


def asked(place: Place, server: ManagementServer, authorization: str) -> int:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response()

    request: Any = SimpleNamespace(headers={"authorization": authorization})
    return place.loop.run(server._guarded(answer)(request)).status


def test_a_hanging_dispatcher_is_reported(place: Place) -> None:
    server = place.started(management_address=ANYWHERE)
    place.hangs = True
    request: Any = SimpleNamespace(headers={})
    answer = place.loop.run(server._expose(request))
    assert (answer.status, answer.text) == (503, "the dispatcher did not answer within 5 s\n")
    with pytest.raises(asyncio.TimeoutError):
        place.loop.run(server.snapshot())
    place.loop.settle()  # since Python 3.12, a timeout is raised before the cancelled task has ended
    assert asyncio.all_tasks(place.loop) == set()  # no snapshot is created without a requester


def test_the_dashboard_gets_the_dispatcher_s_data(place: Place) -> None:
    server = place.started(management_address=ANYWHERE)
    reported: Any = [
        place.loop.run(asking)
        for asking in (
            server.snapshot(),
            server.status(),
            server.requests("m"),
            server.requests("gone"),
        )
    ]
    assert reported == ["figures", "status", "requests of m", None]
