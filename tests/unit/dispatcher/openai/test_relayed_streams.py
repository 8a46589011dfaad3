"""Events relayed from tritonserver's connection to the client's as soon as they arrive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fakes.openai_harness import HELLO, USAGE, Client, OpenAIHarness

from pytriton.dispatcher.openai.completions import AnswerRelay

STREAM = json.dumps({**HELLO, "stream": True})
END = f"u{USAGE}\ndata: end\n\n"


@pytest.fixture
def relayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], bool]]:
    """Return what was sent while a stream's task waited, and whether it could keep waiting."""
    found: list[tuple[list[str], bool]] = []
    plain = AnswerRelay._write_now

    def passed(self: AnswerRelay, texts: list[str]) -> bool:
        found.append((texts, plain(self, texts)))
        return found[-1][1]

    monkeypatch.setattr(AnswerRelay, "_write_now", passed)
    return found


def stepwise(*texts: Any) -> list[Any]:
    """Return a script that waits for an event before each text except the first."""
    return [texts[0], *[step for text in texts[1:] for step in (asyncio.Event(), text)]]


async def read_stepwise(client: Client, script: list[Any]) -> str:
    """Read a stream, and set the script's next event whenever data has arrived."""
    left = [step for step in script if isinstance(step, asyncio.Event)]
    found = ""
    async with client.post("/v1/chat/completions", data=STREAM) as answer:
        while data := await answer.content.readany():
            found += data.decode()
            if left:
                left.pop(0).set()
    return found


def test_events_are_passed_on_without_the_task(relayed: list[Any]) -> None:
    rig = OpenAIHarness([])

    async def test(client: Client) -> None:
        rig.script[:] = stepwise(*[f"sdata: {n}\n\n" for n in range(4)], END)
        got = await read_stepwise(client, rig.script)
        assert got == "".join(f"data: {n}\n\n" for n in [*range(4), "end", "[DONE]"])
        assert 'time_to_first_token_seconds_count{gen_ai_operation_name="chat"' in (
            rig.frontend.meters.text()
        )

    rig.run(test)
    assert relayed[:3] == [([f"sdata: {n}\n\n"], True) for n in (1, 2, 3)]
    assert relayed[3:] in ([], [([END], False)])


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ({"error": "it broke"}, "model_error"),
        ('e{"message":"long","status":400,"type":"t","code":"c"}', "c"),
        ("zzz", "model_error"),
    ],
    ids=str,
)
def test_an_error_after_relayed_events(relayed: list[Any], last: Any, code: str) -> None:
    rig = OpenAIHarness([])

    async def test(client: Client) -> None:
        rig.script[:] = stepwise("sdata: 0\n\n", "sdata: 1\n\n", last)
        *events, error, done = (await read_stepwise(client, rig.script)).strip().split("\n\n")
        assert (events, done) == (["data: 0", "data: 1"], "data: [DONE]")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == code

    rig.run(test)
    assert relayed[0] == (["sdata: 1\n\n"], True)


def test_a_slow_reader_gets_everything(relayed: list[Any]) -> None:
    events = [
        f"data: {n} {'x' * (1 << 20)}\n\n" for n in range(24)
    ]  # more than the socket buffers hold
    rig = OpenAIHarness([])

    async def test(client: Client) -> None:
        rig.script[:] = [*(f"s{event}" for event in events), END]
        async with client.post("/v1/chat/completions", data=STREAM) as answer:
            while all(taken for _, taken in relayed):  # until the client holds it up
                await asyncio.sleep(0)
            got = (await answer.read()).decode()
        assert got == "".join([*events, "data: end\n\ndata: [DONE]\n\n"])

    rig.run(test)


def test_a_stream_ends_with_its_last_event_before_the_models_answer_ends() -> None:
    rig = OpenAIHarness([])

    async def test(client: Client) -> None:
        ends = asyncio.Event()
        rig.script[:] = ["sdata: 0\n\n", END, ends]
        async with client.post("/v1/chat/completions", data=STREAM) as answer:
            assert await answer.text() == "data: 0\n\ndata: end\n\ndata: [DONE]\n\n"
        ends.set()
        rig.script = [END]
        async with client.post("/v1/chat/completions", data=STREAM) as answer:
            assert await answer.text() == "data: end\n\ndata: [DONE]\n\n"
        assert "error_type" not in rig.frontend.meters.text()

    rig.run(test)
    assert rig.said == []


def test_what_a_model_sends_after_the_end_is_dropped_and_logged() -> None:
    rig = OpenAIHarness([])

    async def test(client: Client) -> None:
        later = asyncio.Event()
        rig.script[:] = ["sdata: 0\n\n", END, later, "sdata: 1\n\n"]
        async with client.post("/v1/chat/completions", data=STREAM) as answer:
            assert await answer.text() == "data: 0\n\ndata: end\n\ndata: [DONE]\n\n"
        later.set()
        rig.script = [END]
        # The connection is intact.
        async with client.post("/v1/chat/completions", data=STREAM) as answer:
            assert await answer.text() == "data: end\n\ndata: [DONE]\n\n"

    rig.run(test)
    (line,) = rig.said
    assert line.endswith("The model's answer is invalid.")
