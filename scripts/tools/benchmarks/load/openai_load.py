"""Generates load on the OpenAI API: measures tokens per second, and the time to the first one.

It shares the CPUs with the server, so it counts bytes and does not parse JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from statistics import median

_PATHS = {"embed": "/v1/embeddings"}


@dataclass
class Seen:
    """The measurements of all clients after the warm-up."""

    ends_at: float
    begins_at: float
    items: int = 0  #: tokens, or embeddings
    all_items: int = 0  #: with those of the warm-up and of the end
    answers: int = 0
    failed: int = 0
    first_s: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """A connection that sends one request at a time."""

    def __init__(self, request: bytes, seen: Seen, done: asyncio.Future[None]) -> None:
        self._request = request
        self._seen = seen
        self._done = done
        self._stream = b'"stream"' in request
        self._item = b'"content"' if self._stream else b'"index"'

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        self._found = 0
        self._answer = bytearray()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count tokens. Send the next request when the response is complete."""
        from_ = max(0, len(self._answer) - len(self._item) + 1)  # one may be split
        self._answer += data
        found = self._answer.count(self._item, from_)
        now, seen = time.monotonic(), self._seen
        seen.all_items += found
        if seen.begins_at <= now <= seen.ends_at:
            seen.items += found
            if found and not self._found:
                seen.first_s.append(now - self._asked_at)
        self._found += found
        if self._complete():
            self._check(now)
        if now > seen.ends_at:
            self._transport.close()
        elif not self._answer:
            self._ask()

    def _complete(self) -> bool:
        if self._stream:
            return self._answer.endswith(b"0\r\n\r\n") and b"[DONE]" in self._answer
        head, end, body = self._answer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return bool(end) and len(body) >= int(length)

    def _check(self, now: float) -> None:
        seen = self._seen
        if seen.begins_at <= now <= seen.ends_at:
            wanted = 100 if self._stream else 1
            seen.answers += 1
            # Some send a last piece with an empty content.
            seen.failed += not wanted <= self._found <= wanted + 1
        self._answer.clear()

    def connection_lost(self, error: Exception | None) -> None:
        """Be done; in the middle of the run that is a failure."""
        if time.monotonic() < self._seen.ends_at:
            self._seen.failed += 1
        if not self._done.done():
            self._done.set_result(None)


def request_of(name: str) -> bytes:
    """Return what every client sends."""
    body: dict[str, object] = {"model": name, "input": ["a sentence to embed"]}
    if name != "embed":
        messages = [{"role": "user", "content": "Say a hundred words."}]
        body = {"model": name, "messages": messages, "stream": True}
    data = json.dumps(body)
    path = _PATHS.get(name, "/v1/chat/completions")
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n{data}"
    ).encode()


async def _run(name: str, port: int, clients: int, seconds: float) -> Seen:
    loop = asyncio.get_running_loop()
    begins_at = time.monotonic() + min(1.0, seconds / 2)
    seen = Seen(begins_at + seconds, begins_at)
    done = [loop.create_future() for _ in range(clients)]
    request = request_of(name)
    for one in done:
        await loop.create_connection(lambda one=one: Client(request, seen, one), "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.wait(done, timeout=seconds + 30)
    return seen


def main() -> None:
    """Print what was seen, as JSON: name, port, clients, seconds."""
    name, port, clients, seconds = sys.argv[1:]
    seen = asyncio.run(_run(name, int(port), int(clients), float(seconds)))
    first_s = sorted(seen.first_s) or [float("nan")]
    print(
        json.dumps(
            {
                **{name: value for name, value in asdict(seen).items() if name != "first_s"},
                "per_s": seen.items / float(seconds),
                "first_ms": median(first_s) * 1e3,
                "first_p99_ms": first_s[int(len(first_s) * 0.99) if len(first_s) > 1 else 0] * 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()
