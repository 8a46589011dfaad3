"""Typed routes and pages: accepted tables, lookup, and the way of bodies to the model and back."""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, ask, ask_admin, head
from support.frontend.talking_model import say, start_talking

JSON, BINARY = "application/json", "application/octet-stream"


def route(path: str, model: str = "echo", **more: Any) -> dict[str, Any]:
    return {"path": path, "model": model, "type": JSON, "streams": False, **more}


def publish(frontend: OpenAIProcess, document: Any) -> tuple[int, bytes]:
    """Replace the table; return the status and the body."""
    return ask_admin(frontend, "/admin/routes", document)


def post(path: str, body: bytes, *headers: str) -> bytes:
    return head(f"POST {path}", headers or (f"Content-Type: {JSON}",), body)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "page.html"
    file.write_bytes(b"<p>hello</p>")
    return file


@pytest.fixture(scope="module")
def frontend(made: Built, page: Path) -> Iterator[OpenAIProcess]:
    """A frontend that serves every model of the core at its name, and one page."""
    names = (
        "echo",
        "thread",
        "held",
        "refused",
        "huge",
        "failing",
        "odd",
        "short",
        "unfit",
        "nobody",
    )
    table = {
        "routes": [*(route(f"/{name}", name) for name in names), route("/talking", "talking", streams=True),
                   route("/text/echo", type=BINARY), route("/predictions/echo", put=True)],
        "pages": [{"path": "/docs", "type": "text/html", "file": str(page), "policy": "default-src 'none'"}],
        "origins": ["https://app.example"],
        "log_errors": True,
    }  # fmt: skip
    with running(made, {"body_bytes": 4 << 20}) as frontend:
        assert publish(frontend, table)[0] == 200
        yield frontend


REFUSED = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": [],
    "no array": {"routes": {}},
    "a number": {"routes": [1]},
    "more behind it": b"{} {}",
    "deep": b'{"routes":' + b"[" * 100_000,
    "deep member": {"routes": [route("/a", other=[[[[[[[[[1]]]]]]]]])]},
    "no path": {"routes": [{"model": "echo", "type": JSON}]},
    "no type": {"routes": [{"path": "/a", "model": "echo"}]},
    "neither model nor page": {"routes": [{"path": "/a", "type": JSON}]},
    "model and page": {"routes": [route("/a", file="/dev/null")]},
    "path without a slash": {"routes": [route("a")]},
    "empty path": {"routes": [route("")]},
    "path twice": {"routes": [route("/a"), route("/b"), route("/a")]},
    "member twice": b'{"routes":[{"path":"/a","path":"/b","model":"echo","type":"a/b"}]}',
    "NUL in a path": b'{"routes":[{"path":"/a\\u0000b","model":"echo","type":"a/b"}]}',
    "NUL in an origin": b'{"origins":["a\\u0000b"]}',
    "type with a line break": {"routes": [route("/a", type="a/b\r\nSet-Cookie: a=b")]},
    "type with a line feed": {"routes": [route("/a", type="a/b\n")]},
    "type with other characters": {"routes": [route("/a", type="a/\u00e9")]},
    "empty type": {"routes": [route("/a", type="")]},
    "type as long as a head": {"routes": [route("/a", type="a/" + "b" * 3000)]},
    "type that is a little too long": {"routes": [route("/a", type="a/" + "b" * 126)]},
    "streams is no boolean": {"routes": [route("/a", streams="yes")]},
    "page that is not there": {"pages": [{"path": "/a", "type": "a/b", "file": "/no/such"}]},
    "page that is a folder": {"pages": [{"path": "/a", "type": "a/b", "file": "/"}]},
    "page that never ends": {"pages": [{"path": "/a", "type": "a/b", "file": "/dev/zero"}]},
    "put that is a number": {"routes": [route("/a", put=1)]},
    "log_errors that is text": {"log_errors": "yes"},
    "policy with a line break": {"pages": [{"path": "/a", "type": "a/b", "file": "/dev/null", "policy": "a\r\nb: c"}]},
    "too many origins": {"origins": ["https://a.example"] * 1001},
    "too many routes": {"routes": [route(f"/{number}") for number in range((1 << 16) + 1)]},
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_malformed_table_changes_nothing(frontend: OpenAIProcess, kind: str) -> None:
    status, answer = publish(frontend, REFUSED[kind])
    assert status in (400, 413), answer
    assert len(answer) < 1000
    assert ask(frontend, post("/echo", b"1"))[2] == b"1"


def test_a_page_file_that_is_a_pipe_does_not_block(frontend: OpenAIProcess, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    table = {"pages": [{"path": "/a", "type": "a/b", "file": str(tmp_path / "pipe")}]}
    assert publish(frontend, table)[0] == 400


@pytest.fixture(scope="module")
def changing(made: Built) -> Iterator[OpenAIProcess]:
    """Another frontend, whose table tests replace."""
    with running(made, {"body_bytes": 64 << 20}) as frontend:
        yield frontend


def test_a_damaged_table_is_served_or_refused(changing: OpenAIProcess) -> None:
    chance = random.Random(1)
    table = {
        "routes": [route("/a"), route("/a/b", "thread", streams=True)],
        "origins": ["https://a.example"],
    }
    sound = json.dumps(table).encode()
    for _ in range(1500):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            index = chance.randrange(len(damaged))
            damaged[index : index + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        assert publish(changing, bytes(damaged))[0] in (200, 400)
    assert publish(changing, sound)[0] == 200
    assert ask(changing, post("/a/b", b"1"))[2] == b"1"


def test_an_unknown_path_is_answered_as_triton_does_without_typed_functions(
    changing: OpenAIProcess,
) -> None:
    for routes in ([], [route("/a")], []):
        assert publish(changing, {"routes": routes})[0] == 200
        status, headers, body = ask(changing, post("/nowhere", b"x"))
        assert status == 404
        if routes:
            assert headers["content-type"] == "application/problem+json"
            assert "/openapi.json" in json.loads(body)["detail"]
        else:
            assert body == b'{"error":"Not Found"}'


def test_thousands_of_routes_are_found(changing: OpenAIProcess) -> None:
    """In any order: paths that are prefixes of others, and characters that sort before and after the slash."""
    chance = random.Random(2)
    parts = ["a", "a-", "a.b", "a~", "a_", "b", "A", "0", "ab", "abc"]
    paths = {"/" + "/".join(chance.choices(parts, k=chance.randint(1, 8))) for _ in range(20_000)}
    assert publish(changing, {"routes": [route(path) for path in sorted(paths)]})[0] == 200
    client = RawClient(changing)
    others = {path + more for path in list(paths)[:300] for more in ("/", "/zz", "-")} - paths
    others |= {path[:-1] for path in list(paths)[:300]} - paths
    for path in [*list(paths)[:1000], *others]:
        client.send(post(path or "/", b"[1]"))
        answer = client.answer()
        assert answer[0] == (200 if path in paths else 404), path
    client.close()


def test_routes_can_be_replaced_while_they_are_used(changing: OpenAIProcess) -> None:
    small, large = [route("/a")], [route("/a"), *(route(f"/{number}") for number in range(3000))]
    assert publish(changing, {"routes": small})[0] == 200
    ended = threading.Event()
    statuses: set[int] = set()

    def use() -> None:
        client = RawClient(changing)
        while not ended.is_set():
            client.send(post("/a", b"[1]") + post("/17", b"[1]"))
            assert client.answer()[2] == b"[1]"
            statuses.add(client.answer()[0])
        client.close()

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    for number in range(40):
        assert publish(changing, {"routes": (small, large)[number % 2]})[0] == 200
    ended.set()
    for user in users:
        user.join()
    assert statuses == {200, 404}


@pytest.mark.parametrize("path", ["/admin/routes", "/admin/work", "/admin/retire"])
def test_clients_cannot_replace_the_table(frontend: OpenAIProcess, path: str) -> None:
    for method in ("POST", "GET", "PUT"):
        assert ask(frontend, head(f"{method} {path}", (), b'{"routes":[]}'))[0] == 404
    assert ask(frontend, post("/echo", b"1"))[0] == 200


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/echo", "/thread", "/text/echo"])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 100, 70_000, 3 << 20])
def test_a_body_round_trips(frontend: OpenAIProcess, path: str, size: int) -> None:
    body = random.Random(size).randbytes(size)
    last = f"Content-Type: {BINARY}"  # its end is where the body's size is written
    for headers in ((last,), ("Connection: keep-alive", last), (last, "X: y")):
        status, answered, got = ask(frontend, post(path, body, *headers))
        assert (status, got) == (200, body)
        assert answered["content-type"] == (BINARY if path == "/text/echo" else JSON)


def chunked(path: str, body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(one), one) for one in pieces)
    line = f"POST {path}"
    return head(line, ("Transfer-Encoding: chunked",)) + chunks + b"0\r\nTrailer: x\r\n\r\n"


def test_put_does_what_post_does_where_the_route_takes_it(frontend: OpenAIProcess) -> None:
    request = head("PUT /predictions/echo", (), b"abc")  # as `curl -T` sends it: without a type
    assert ask(frontend, request)[::2] == (200, b"abc")
    assert ask(frontend, post("/predictions/echo", b"[1]"))[::2] == (200, b"[1]")
    for line, allowed in (("PUT /echo", "POST"), ("GET /predictions/echo", "POST, PUT")):
        status, headers, _ = ask(frontend, head(line))
        assert (status, headers["allow"]) == (405, allowed)
    origin = "Origin: https://app.example"
    preflight = head("OPTIONS /predictions/echo", (origin, "Access-Control-Request-Method: PUT"))
    status, headers, _ = ask(frontend, preflight)
    assert (status, headers["access-control-allow-methods"]) == (204, "POST, PUT")


def test_a_route_may_disappear_while_its_requests_run(
    changing: OpenAIProcess, tmp_path: Path
) -> None:
    streams = {"routes": [route("/talking", "talking", streams=True)]}
    assert publish(changing, streams)[0] == 200
    talk = Talk(changing, tmp_path)
    talk.say(b"1")
    assert publish(changing, {"routes": []})[0] == 200
    assert ask(changing, post("/talking", b""))[0] == 404
    talk.say(b"2")
    assert talk.events() == b"data: 1\n\ndata: 2\n\n"


def test_bodies_in_chunks_and_compressed(frontend: OpenAIProcess) -> None:
    body = bytes(range(256)) * 8
    client = RawClient(frontend)
    for size in (1, 3, 1000, 4000):
        client.send(chunked("/echo", body, size), [7] * 40)
        assert client.answer()[2] == body
    for data in (b"", b"a", body, bytes(1 << 20)):
        client.send(post("/thread", gzip.compress(data), "Content-Encoding: gzip"))
        assert client.answer()[2] == data
    client.send(
        post("/echo", b"1")
        + post("/echo", b"")
        + chunked("/thread", b"23", 1)
        + post("/echo", b"4")
    )
    assert [client.answer()[2] for _ in range(4)] == [b"1", b"", b"23", b"4"]
    client.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post("/echo", gzip.compress(bytes(64 << 20)), "Content-Encoding: gzip"), 413),
        (post("/echo", b"no gzip", "Content-Encoding: gzip"), 400),
        (post("/echo", gzip.compress(b"a" * 5000)[:-9], "Content-Encoding: gzip"), 400),
        (post("/echo", b"x", "Content-Encoding: br"), 415),
        (head("POST /echo", ("Content-Length: 99999999999",)), 413),
        (head("POST /echo", ("Content-Type: a/b", "Content-Type: c/d"), b"x"), 400),
        (head("POST /echo", (f"Content-Type: {'a' * 4000}",), b"x"), 200),
        (head("GET /echo"), 405),
        (head("DELETE /echo"), 405),
        (head("OPTIONS /echo"), 405),
        (head("POST /docs", (), b"x"), 405),
        (post("/nobody", b"x"), 404),
        (post("/nowhere", b"x"), 404),
        (head("GET /echo/nowhere"), 404),
        (head("GET /"), 404),
        (post("/refused", b"x"), 503),
        (post("/failing", b"x"), 500),
        (post("/unfit", b"x"), 400),
        (post("/huge", b"x"), 503),
        (post("/short", b"x"), 500),
    ],
)
def test_failures_are_problem_documents(
    frontend: OpenAIProcess, request_: bytes, status: int
) -> None:
    answer = ask(frontend, request_)
    assert answer[0] == status, answer
    if status != 200:
        assert answer[1]["content-type"] == "application/problem+json"
        assert json.loads(answer[2])["status"] == status


def test_pages(frontend: OpenAIProcess) -> None:
    status, headers, body = ask(frontend, head("GET /docs?x=1"))
    assert (status, body) == (200, b"<p>hello</p>")
    assert headers["content-security-policy"] == "default-src 'none'"
    assert headers["x-content-type-options"] == "nosniff"
    client = RawClient(frontend)
    client.send(head("HEAD /docs"))
    assert client.answer(head=True)[1]["content-length"] == "12"
    client.close()
    for path in (
        "/docs/",
        "/docs/..",
        "/docs/../docs",
        "//docs",
        "/docs%2f",
        "/docs/page.html",
        "/%2e%2e/docs",
    ):
        assert ask(frontend, head(f"GET {path}"))[0] in (400, 404), path


def test_an_origin_cannot_inject_a_header(frontend: OpenAIProcess) -> None:
    asked = ("Origin: https://app.example", "Access-Control-Request-Headers: x\ry: z")
    assert ask(frontend, head("OPTIONS /echo", asked))[0] == 400
    for origin in ("https://app.example, https://b.example", "https://app.example/", "*"):
        status, headers, _ = ask(frontend, head("OPTIONS /echo", (f"Origin: {origin}",)))
        assert (status, "access-control-allow-origin" in headers) == (405, False)
    sizes = (0, 1, 400, 511, 512, 513, 900, 1500)
    for size in sizes:  # of the header that comes back
        asked = ("Origin: https://app.example", f"Access-Control-Request-Headers: {'a' * size}")
        status, headers, _ = ask(frontend, head("OPTIONS /echo", asked))
        assert (status, headers["access-control-allow-origin"]) == (204, "https://app.example")
        assert headers.get("access-control-allow-headers", "") in ("", "a" * size)


# ── events ───────────────────────────────────────────────────────────────────────────────────────────


class Talk:
    """A request for events: the model's side and the client's."""

    def __init__(self, frontend: OpenAIProcess, folder: Path, receive_bytes: int = 0) -> None:
        self.client = socket.socket()
        if receive_bytes:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.client.settimeout(60)
        self.client.connect(frontend.http)

        def ask_model(path: str) -> None:
            self.client.sendall(post("/talking", f"script:{path};".encode()))

        self.model = start_talking(folder, ask_model)

    def say(self, text: bytes) -> None:
        """Let the model yield a text."""
        say(self.model, text)

    def events(self) -> bytes:
        """Return the body without its chunk framing, after the model has ended."""
        self.model.close()
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += self.client.recv(1 << 16)
        got = got.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")  # is it still there?
        rest, body = got.split(b"\r\n\r\n", 1)[1], b""
        while size := int(rest.split(b"\r\n", 1)[0], 16):
            rest = rest.split(b"\r\n", 1)[1]
            body, rest = body + rest[:size], rest[size + 2 :]
        self.client.close()
        return body.replace(b": still there?\n\n", b"")  # asked if the model pauses


@pytest.mark.parametrize(
    ("item", "event"),
    [
        (b'"a"', b'data: "a"\n\n'),
        (b"a\nb", b"data: a\ndata: b\n\n"),
        (b"a\r\nb\rc\n\n", b"data: a\ndata: b\ndata: c\ndata: \ndata: \n\n"),
        (b"a\n\nevent: error\ndata: b", b"data: a\ndata: \ndata: event: error\ndata: data: b\n\n"),
        (b"\xff\0", b"data: \xff\0\n\n"),
    ],
)
def test_each_item_is_one_event(
    frontend: OpenAIProcess, tmp_path: Path, item: bytes, event: bytes
) -> None:
    talk = Talk(frontend, tmp_path)
    talk.say(item)
    talk.say(b"next")
    assert talk.events() == event + b"data: next\n\n"


def test_a_half_closed_client_gets_all_events(frontend: OpenAIProcess, tmp_path: Path) -> None:
    talk = Talk(frontend, tmp_path)
    talk.client.shutdown(socket.SHUT_WR)
    talk.say(b"1")
    talk.say(b"2")
    assert talk.events() == b"data: 1\n\ndata: 2\n\n"


def test_a_client_that_reads_nothing_is_disconnected(made: Built, tmp_path: Path) -> None:
    with running(made, {"unsent_bytes": 1 << 20, "unsent_s": 0.5}) as frontend:
        assert publish(frontend, {"routes": [route("/talking", "talking", streams=True)]})[0] == 200
        talk = Talk(frontend, tmp_path, receive_bytes=4096)

        def say_on() -> None:
            for _ in range(20_000):
                talk.say(b"x" * 10_000)

        with pytest.raises(OSError, match=r"reset|Broken pipe"):  # the request is cancelled
            say_on()
        talk.client.close()
        talk.model.close()
