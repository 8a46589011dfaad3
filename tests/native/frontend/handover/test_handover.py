"""A frontend that is replaced: its successor takes over connections between two requests, unnoticed by clients."""

from __future__ import annotations

import array
import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask_admin, data_of, head, json_of, post
from support.frontend.raw_http2 import GOAWAY, HEADERS, call, hello, read_frames
from support.frontend.relayed_stream import END, Stream
from support.real_daemon import eventually

_ASK = post("echo", json_of())
#: A loop may answer a request or two before it hears that the server is being replaced.
_MAX_ANSWERS = 1000


def _retire(frontend: OpenAIProcess, successor: Path | None) -> None:
    body = {} if successor is None else {"successor": str(successor)}
    assert ask_admin(frontend, "/admin/retire", body) == (200, b"")


def _work(frontend: OpenAIProcess) -> dict[str, int]:
    reported: dict[str, int] = json.loads(ask_admin(frontend, "/admin/work")[1])
    return reported


def _ends(frontend: OpenAIProcess) -> bool:
    return frontend.process.wait(60) == 0


@pytest.fixture
def pair(made: Built, tmp_path: Path) -> Iterator[tuple[OpenAIProcess, OpenAIProcess, Path]]:
    """A frontend, its successor, and the socket at which that takes over connections."""
    path = tmp_path / "handover.sock"
    with running(made) as former, running(made, handover=path) as successor:
        yield former, successor, path


def test_idle_connections_continue_in_the_successor(
    pair: tuple[OpenAIProcess, OpenAIProcess, Path],
) -> None:
    """Including one without a request so far, and one whose client has just sent one."""
    former, successor, path = pair
    with (
        closing(RawClient(former)) as used,
        closing(RawClient(former)) as unused,
        closing(RawClient(former)) as another,
    ):
        for client in (used, another):
            client.send(_ASK)
            assert data_of(client.answer()) == [1, 2]
        eventually(lambda: _work(former)["connections"] == 3, "all are accepted")
        _retire(former, path)
        another.send(_ASK)
        assert _ends(former)
        for client in (used, unused):
            client.send(_ASK)
        for client in (used, unused, another):
            assert data_of(client.answer()) == [1, 2]
        assert _work(successor)["connections"] == 3
    eventually(lambda: _work(successor)["connections"] == 0, "their clients have gone")


def test_a_started_request_is_answered_before_the_handover(
    pair: tuple[OpenAIProcess, OpenAIProcess, Path],
) -> None:
    former, successor, path = pair
    with closing(RawClient(former)) as client:
        client.send(_ASK + _ASK[:-3])
        assert data_of(client.answer()) == [1, 2]
        _retire(former, path)
        client.send(_ASK[-3:])
        assert data_of(client.answer()) == [1, 2]
        assert _ends(former)
        client.send(_ASK)
        assert data_of(client.answer()) == [1, 2]
        assert _work(successor)["connections"] == 1


@pytest.mark.parametrize("word", [b"g", b"n", b""])
def test_the_successor_drops_a_late_reply_to_a_relay(
    made: Built, tmp_path: Path, word: bytes
) -> None:
    path = tmp_path / "handover.sock"
    with (
        running(made, private=tmp_path / "former.sock") as former,
        running(made, private=tmp_path / "own.sock", handover=path) as successor,
        closing(Stream(former, tmp_path, keep_alive=True)) as stream,
    ):
        stream.begin()
        _retire(former, path)
        stream.say(END)
        stream.end()
        stream.hear(b"\r\n0\r\n\r\n")
        assert _ends(former)
        if word:
            stream.word(word, *[stream.held.fileno()] * (word == b"g"))
        following = Stream(successor, tmp_path, keep_alive=True, way=lambda _: stream.asker)
        with closing(following):
            following.hand_over()


def test_a_handed_over_connection_may_stay_idle(made: Built, tmp_path: Path) -> None:
    """It is not treated as a new connection, whose first request has to come soon."""
    path = tmp_path / "handover.sock"
    with (
        running(made) as former,
        running(made, {"header_s": 0.1}, handover=path) as successor,
        closing(RawClient(former)) as client,
    ):
        client.send(_ASK)
        assert data_of(client.answer()) == [1, 2]
        _retire(former, path)
        assert _ends(former)
        with closing(
            RawClient(successor)
        ) as late:  # one that has to send its first request in that time
            assert late.ends()
        client.send(_ASK)
        assert data_of(client.answer()) == [1, 2]


def test_connections_without_a_successor_are_still_served(made: Built, tmp_path: Path) -> None:
    with running(made) as former:
        with closing(RawClient(former)) as client:
            client.send(_ASK)
            assert data_of(client.answer()) == [1, 2]
            _retire(former, tmp_path / "nobody.sock")
            for _ in range(3):
                client.send(_ASK)
                status, headers, _ = client.answer()
                assert (status, headers.get("connection")) == (200, None)
        assert _ends(former)


def test_connections_that_cannot_be_handed_over_close_after_the_next_response(made: Built) -> None:
    with running(made) as former:
        with closing(RawClient(former)) as client:
            client.send(_ASK)
            assert data_of(client.answer()) == [1, 2]
            _retire(former, None)
            for _ in range(_MAX_ANSWERS):
                client.send(_ASK)
                status, headers, _ = client.answer()
                assert status == 200
                if headers.get("connection") == "close":
                    break
            assert client.ends()
        assert _ends(former)


def test_an_encrypted_connection_closes_after_its_next_response(
    made: Built, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    tls = {"certificate": str(tmp_path / "cert"), "key": str(tmp_path / "key")}
    path = tmp_path / "handover.sock"
    with running(made, tls=tls) as former, running(made, tls=tls, handover=path):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        client = http.client.HTTPSConnection(*former.http, context=context, timeout=60)
        with closing(client):
            headers: list[str | None] = []
            while headers[-1:] != ["close"] and len(headers) < _MAX_ANSWERS:
                client.request("POST", "/v2/models/echo/infer", json_of())
                response = client.getresponse()
                assert response.status == 200
                response.read()
                headers.append(response.getheader("connection"))
                if len(headers) == 1:
                    _retire(former, path)
            assert headers[0] is None
            assert headers[-1] == "close"
        assert _ends(former)


def test_grpc_clients_get_goaway_and_are_served_until_they_disconnect(made: Built) -> None:
    with running(made, protocol="grpc") as former:
        with closing(hello(former.http[1])) as client:
            client.sendall(call(1))
            read = read_frames(client)
            while next(read)[0] != HEADERS:
                pass
            _retire(former, None)
            while (frame := next(read))[0] != GOAWAY:
                pass
            # It names no last call: this one, which the client sent before it had heard, is answered.
            assert int.from_bytes(frame[1][:4], "big") == 2**31 - 1
            client.sendall(call(3))
            while next(read)[0] != HEADERS:
                pass
            assert former.process.poll() is None
        assert _ends(former)


def test_a_frontend_stops_accepting_and_accepts_again(made: Built) -> None:
    """In between, connections wait in the socket."""
    with running(made) as frontend:
        assert ask_admin(frontend, "/admin/accept", {"accept": False}) == (200, b"")
        with closing(RawClient(frontend)) as client:
            client.send(_ASK)
            assert _work(frontend)["connections"] == 0
            assert ask_admin(frontend, "/admin/accept", {"accept": True}) == (200, b"")
            assert data_of(client.answer()) == [1, 2]
        assert ask_admin(frontend, "/admin/accept", {"accept": 1})[0] == 400
        assert ask_admin(frontend, "/admin/accept", {})[0] == 400


def test_a_retiring_frontend_does_not_accept_again(made: Built) -> None:
    with running(made) as frontend, closing(RawClient(frontend)) as client:
        client.send(_ASK[:9])
        eventually(lambda: _work(frontend)["connections"] == 1, "it is accepted")
        _retire(frontend, None)
        assert ask_admin(frontend, "/admin/accept", {"accept": True})[0] == 503
        assert ask_admin(frontend, "/admin/retire", {})[0] == 400


def test_draining_finishes_requests_and_returns_after_the_last_client(made: Built) -> None:
    with (
        running(made) as frontend,
        closing(RawClient(frontend)) as idle,
        closing(RawClient(frontend)) as busy,
    ):
        busy.send(_ASK[:9])
        eventually(lambda: _work(frontend)["connections"] == 2, "both are accepted")
        leaving = http.client.HTTPConnection(*frontend.admin, timeout=60)
        with closing(leaving):
            leaving.request("POST", "/admin/leave", "{}")
            assert idle.ends()
            busy.send(_ASK[9:])
            status, headers, _ = busy.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert busy.ends()
            idle.close()
            busy.close()
            assert leaving.getresponse().status == 200
        assert _work(frontend)["connections"] == 0


def _hostile(path: Path, word: bytes, *descriptors: int) -> None:
    with socket.socket(socket.AF_UNIX) as giver:
        giver.connect(str(path))
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        giver.sendmsg([word], ancillary)
        assert giver.recv(1) == b""


def test_only_client_connections_are_handed_over(made: Built, tmp_path: Path) -> None:
    path = tmp_path / "handover.sock"
    with running(made, handover=path) as frontend:
        ours, theirs = socket.socketpair()
        with (
            ours,
            theirs,
            socket.create_server(("127.0.0.1", 0)) as listener,
            open(os.devnull) as file,
        ):
            for word, *descriptors in (
                (b"\0",),
                (b"\0", file.fileno()),
                (b"\0", listener.fileno()),
                (b"\1", theirs.fileno()),  # the dispatcher's endpoint
                (b"\2", theirs.fileno()),  # the one for this
                (b"\3", theirs.fileno()),
                (b"\xff", theirs.fileno()),
                (b"\0", theirs.fileno(), theirs.fileno()),
            ):
                _hostile(path, word, *descriptors)
        assert _work(frontend)["connections"] == 0
        with closing(RawClient(frontend)) as client:
            client.send(head("GET /v2/health/live"))
            assert client.answer()[0] == 200
