"""Workers with malformed answers, and clients that disconnect or do not read: errors, metrics and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError, ClientError
from fakes.openai_harness import HELLO, USAGE, Client, OpenAIHarness, post

from pytriton.dispatcher.openai.completions import AnswerRelay

STREAM = {**HELLO, "stream": True}
NONSENSE = [
    "u\n{}",
    "uno json\n{}",
    'u{"prompt_tokens":"x"}\n{}',
    'u{"prompt_tokens":-5}\n{}',
    'u{"completion_tokens":1000000000000000000000000}\n{}',
    "eno json",
    'e{"message":5}',
    'e{"message":"x","status":"y"}',
    "z",
    "",
]


@pytest.mark.parametrize("said", NONSENSE, ids=repr)
def test_malformed_messages_cause_one_clear_error(said: str) -> None:
    """Also within a stream, where a second response head must not follow."""

    async def before(client: Client) -> None:
        status, _, text = await post(client, HELLO)
        assert (status, json.loads(text)["error"]["code"]) == (500, "model_error")

    OpenAIHarness([said]).run(before)

    async def within(client: Client) -> None:
        status, _, text = await post(client, STREAM)
        events = text.strip().split("\n\n")
        assert (status, events[0], events[-1]) == (200, "data: a", "data: [DONE]")
        assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "model_error"
        assert len(events) == 3
        assert rig.frontend.meters.active == 0

    rig = OpenAIHarness(["sdata: a\n\n", said])
    rig.run(within)


def test_the_error_of_a_response_has_the_next_number() -> None:
    events = "".join(f'event: e\ndata: {{"sequence_number":{n}}}\n\n' for n in range(3))

    async def test(client: Client) -> None:
        body = {"model": "m", "input": "x", "stream": True}
        _, _, text = await post(client, body, "/v1/responses")
        reported = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert [one["sequence_number"] for one in reported] == [0, 1, 2, 3]
        assert (reported[-1]["type"], reported[-1]["code"]) == ("error", "model_error")

    OpenAIHarness([f"s{events}", {"error": "it broke"}]).run(test)


def test_error_codes_create_a_limited_number_of_series() -> None:
    rig = OpenAIHarness([])

    async def test(client: Client) -> None:
        for number in range(200):
            error = {"message": "x", "status": 400 + number % 2 * 100, "code": f"c{number}\n"}
            if number % 4 > 1:
                error["code"] = f"c{number}"
            rig.script[:] = [f"e{json.dumps(error)}"]
            await post(client, HELLO)
        text = rig.frontend.meters.text()
        assert text.count("gen_ai_server_request_duration_seconds_count") <= 65
        assert 'error_type="_OTHER"' in text
        assert 'error_type="c2"' in text
        # They reached a model.
        assert "pytriton_openai_refused_requests_total{" not in text

    rig.run(test)


def test_a_failure_is_logged_in_one_short_line() -> None:
    async def test(client: Client) -> None:
        await post(client, HELLO, headers={"x-request-id": "mine"})
        (line,) = rig.said
        assert line.startswith("model m, request mine: The model failed: a b x")
        assert len(line) < 600

    rig = OpenAIHarness([{"error": "a\nb\r\n" + "x" * 10_000}])
    rig.run(test)


def test_a_disconnected_client_is_not_a_server_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing fails before the task is cancelled: the log and the metrics must blame nobody."""

    async def test(client: Client) -> None:
        async def gone(self: Any, data: bytes) -> None:
            raise ClientConnectionResetError("Cannot write to closing transport")

        monkeypatch.setattr(AnswerRelay, "_write", gone)
        with contextlib.suppress(ClientError):
            await post(client, STREAM)
        while rig.frontend.meters.active:
            await asyncio.sleep(0)
        assert rig.said == []
        assert "server_unavailable" not in rig.frontend.meters.text()

    rig = OpenAIHarness(["sdata: a\n\n", f"u{USAGE}\n"])
    rig.run(test)


@pytest.mark.parametrize("ends", ["timeout", "error"])
def test_a_client_that_does_not_read_the_end_frees_its_slot(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytriton.dispatcher.openai.completions._END_S", 0.2)
    much = "sdata: " + "x" * (1 << 20) + "\n\n"
    script: list[Any] = [much] * 64 if ends == "timeout" else [much, {"error": "it broke"}]
    rig = OpenAIHarness(script, timeout_s=0.5)

    async def test(client: Client) -> None:
        loop = asyncio.get_running_loop()
        body = json.dumps(STREAM).encode()
        with socket.socket() as mine:
            mine.setblocking(False)
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
            await loop.sock_connect(mine, (client.host, client.port))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
            await loop.sock_sendall(mine, f"{head}\r\n\r\n".encode() + body)
            while not rig.asked:
                await asyncio.sleep(0.01)
            while rig.frontend.meters.active:  # until the test's own time is over
                await asyncio.sleep(0.01)

    rig.run(test)
