"""Answers of a single string are sent like any others, but without an array."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from fakes.lane_pair import Lanes

from pytriton._protocol import numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchPart,
    BatchTexts,
    Cancel,
    Credit,
    Go,
    Hold,
    RequestRef,
    Room,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.proxy.results import OneText
from pytriton.worker.results import Output, ResultError, ResultWriter
from pytriton.worker.streams import BatchStream, Outbox


class Rig:
    """A stream of a model with these outputs, and its proxy's end."""

    def __init__(
        self, lanes: Lanes, *outputs: Output, requested: list[str], count: int = 1
    ) -> None:
        self.proxy = lanes[0]
        writer = ResultWriter("m", outputs, batching=False, strict=True)
        stats, descriptor = WorkerStatsPage.create()
        os.close(descriptor)
        self.outbox = Outbox(lanes[1], 2)
        assert self.proxy.receive() == Room(2)
        batch = Batch(7, [RequestRef([], "", requested)] * count)
        self.stream = BatchStream(self.outbox, batch, writer, stats=stats)
        self.stats = stats

    def texts(self) -> list[dict[str, list[bytes]]]:
        """Return the outputs of the received part."""
        message = self.proxy.receive()
        if isinstance(message, BatchTexts):
            assert message.ids == [7]
            return [{message.output: [text.encode()]} for text in message.texts]
        assert isinstance(message, BatchPart)
        return [
            {
                ref.name: tensors.decode_bytes(
                    tensors.read_raw(self.proxy, ref), ref.shape
                ).tolist()
                for ref in response.outputs
            }
            for response in message.responses
            if response is not None
        ]


def strings(name: str, *dims: int) -> Output:
    return Output(name, "BYTES", numpy_types.element_dtype("BYTES"), dims)


@pytest.fixture
def no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneText, "__getitem__", lambda *_: pytest.fail("an array was made"))


@pytest.mark.usefixtures("no_array")
@pytest.mark.parametrize("dims", [1, -1])
@pytest.mark.parametrize("requested", [[], ["text"], ["other", "text"]])
@pytest.mark.parametrize("text", ["", "\0", "é", "é" * 3000])
def test_the_only_output_is_the_text(
    lanes: Lanes, dims: int, requested: list[str], text: str
) -> None:
    rig = Rig(lanes, strings("text", dims), requested=requested)
    rig.stream.put(OneText("text", text))
    assert rig.texts() == [{"text": [text.encode()]}]
    assert rig.stats.counts().parts == 1


def test_only_short_texts_and_few_unread_ones_are_in_the_message(lanes: Lanes) -> None:
    """The socket's buffer is limited, and a full one pauses all streams of the lane."""
    rig = Rig(lanes, strings("text", 1), requested=[])

    def kind(text: str) -> type:
        rig.stream.put(OneText("text", text))
        return type(rig.proxy.receive())

    assert [kind("😀" * 128) for _ in range(64)] == [BatchTexts] * 64
    rig.stream.put(OneText("text", "x"))
    assert rig.texts() == [{"text": [b"x"]}]
    rig.outbox.heard(Credit(65))
    assert [kind("😀" * 128 + "x"), kind("x" * 512)] == [BatchPart, BatchTexts]


def test_a_callable_learns_that_there_is_no_more_room(lanes: Lanes) -> None:
    rig = Rig(lanes, strings("text", 1), requested=[])
    found = [rig.stream.put_text("text", "x") for _ in range(32)]
    assert found == [True] * 31 + [False]
    rig.outbox.heard(Credit(32))
    rig.outbox.heard(Hold(7, 0))
    assert not rig.stream.put_text("text", "x")
    rig.outbox.heard(Go(7, 0))
    assert rig.stream.put_text("text", "x")


def test_a_callable_must_yield_once_its_client_is_gone(lanes: Lanes) -> None:
    """The loop ends it there. Otherwise, it could produce text for nobody until its end."""
    rig = Rig(lanes, strings("text", 1), requested=[])
    assert rig.stream.put_text("text", "x")
    rig.outbox.heard(Cancel(7, 0))
    assert not rig.stream.put_text("text", "x")
    assert rig.stream.abandoned


def test_a_text_that_is_not_unicode_fails_in_its_stream(lanes: Lanes) -> None:
    rig = Rig(lanes, strings("text", 1), requested=[])
    with pytest.raises(UnicodeEncodeError):
        rig.stream.put_text("text", "\ud800")
    rig.stream.end()
    assert rig.proxy.receive() == BatchDone(7, [])


def test_the_access_log_gets_the_size_of_the_texts(lanes: Lanes) -> None:
    rig = Rig(lanes, strings("text", 1), requested=[])
    rig.stream.bytes_out = 0
    rig.stream.put_text("text", "é")
    rig.stream.put_text("text", "é" * 1000)
    assert rig.stream.bytes_out == 4 + 2 + 4 + 2000


def test_other_declarations_take_the_general_path(lanes: Lanes) -> None:
    rig = Rig(lanes, strings("text", 1), requested=["other"])
    rig.stream.put(OneText("text", "x"))
    assert rig.texts() == [{}]


@pytest.mark.parametrize(
    ("outputs", "count", "refusal"),
    [
        ([strings("other", 1)], 1, "`text` is not defined"),
        ([strings("text", 2)], 1, "invalid shapes"),
        ([strings("text", 1, 1)], 1, "invalid shapes"),
        ([Output("text", "FP32", np.dtype(np.float32), (1,))], 1, "invalid type"),
        ([strings("text", 1), strings("other", 1)], 1, "no output `other`"),
        ([strings("text", 1)], 2, "does not match number of requests"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_like_any_result(
    lanes: Lanes, outputs: list[Output], count: int, refusal: str
) -> None:
    rig = Rig(lanes, *outputs, requested=[], count=count)
    with pytest.raises(ResultError, match=refusal):
        rig.stream.put(OneText("text", "x"))


def test_a_disconnected_client_gets_no_text(lanes: Lanes) -> None:
    rig = Rig(lanes, strings("text", 1), requested=[])
    rig.outbox.heard(Cancel(7, 0))
    rig.stream.put(OneText("text", "x"))
    rig.stream.end()
    assert rig.proxy.receive() == BatchDone(7, [])


def test_other_code_sees_a_list_of_a_dict_of_an_array() -> None:
    text = OneText("text", "x")
    found: list[Any] = list(text)
    assert len(text) == len(found) == 1
    assert found[0]["text"].tolist() == text[0]["text"].tolist() == [b"x"]
