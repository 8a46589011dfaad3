"""Translation between the stub's requests and responses and the lane: addresses, copies, errors and their codes."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.triton.fake_stub import Request, Tensor, TritonError

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import NoMemoryLeft
from pytriton._protocol.lanes.lane import Lane, LaneError
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    RequestDetails,
    ResponseDetails,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.numpy_types import NUMERIC
from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.proxy_backend.python_proxy import translate
from pytriton.proxy_backend.python_proxy.translate import Regions, Translator, trace_of

TEXTS = np.array([b"one", b""], object)


class Ends:
    """Both ends of a lane."""

    def __init__(self) -> None:
        proxy, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.proxy = Lane(proxy, peer_trusted=False)
        self.worker = Lane(worker, peer_trusted=True)

    def batch(self, refs: Any) -> Batch:
        """Return the batch as the worker gets it."""
        self.proxy.send(Batch(1, refs))
        message = self.worker.receive()
        assert isinstance(message, Batch)
        return message

    def answer(self, *arrays: tuple[str, str, Any]) -> ResponseRef:
        """Return the proxy's view of outputs that the worker has written."""
        outputs = [
            tensors.write_raw(
                self.worker, name, "BYTES", list(array.shape), tensors.encode_bytes(array)
            )
            if datatype == "BYTES"
            else tensors.write(self.worker, name, datatype, array, NUMERIC[datatype])
            for name, datatype, array in arrays
        ]
        self.worker.send(BatchDone(1, [ResponseRef(outputs)]))
        message = self.proxy.receive()
        assert isinstance(message, BatchDone)
        return message.responses[0]


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.proxy.close()
    both.worker.close()


@pytest.fixture
def triton_memory() -> Iterator[Any]:
    """tritonserver's shared memory: a file in /dev/shm, mapped here as float32."""
    path = Path(f"/dev/shm/pytriton-test-{uuid.uuid4().hex}")
    with open(path, "wb+") as file:
        os.ftruncate(file.fileno(), 2 * mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
    yield np.frombuffer(mapped, np.float32)
    path.unlink()


def translator(**options: Any) -> Translator:
    return Translator("m", {"x": "FP32", "s": "BYTES"}, **options)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def test_numbers_stay_in_tritons_memory(ends: Ends, triton_memory: Any) -> None:
    triton_memory[:] = np.arange(triton_memory.size)
    one, other = triton_memory[8:14].reshape(2, 3), triton_memory[1024:1025].reshape(1, 1)
    own = translator()
    refs = own.requests([Request(Tensor("x", one)), Request(Tensor("x", other))], ends.proxy)
    places = [(ref.inputs[0].offset, ref.inputs[0].nbytes) for ref in refs]
    assert places == [(32, 24), (4096, 4)]
    batch = ends.batch(refs)
    seen = [tensors.read(ends.worker, ref.inputs[0], np.dtype("f4")) for ref in batch.requests]
    assert [array.tolist() for array in seen] == [one.tolist(), other.tolist()]
    # The memory is announced once on a lane.
    numbers = {
        ref.inputs[0].memory for ref in own.requests([Request(Tensor("x", one))], ends.proxy)
    }
    assert numbers == {refs[0].inputs[0].memory}


def test_the_memory_is_announced_on_each_lane(ends: Ends, triton_memory: Any) -> None:
    own = translator()
    requests = [Request(Tensor("x", triton_memory[:2]))]
    own.requests(requests, ends.proxy)
    own.forget_lane()
    other = Ends()
    batch = other.batch(own.requests(requests, other.proxy))
    assert tensors.read(other.worker, batch.requests[0].inputs[0], np.dtype("f4")).tolist() == [
        0,
        0,
    ]
    other.proxy.close()
    other.worker.close()


def test_tensors_outside_shared_memory_are_reported(ends: Ends) -> None:
    with pytest.raises(RuntimeError, match=r"input x is at 0x.*outside all shared memory"):
        translator().requests([Request(Tensor("x", np.zeros(4, np.float32)))], ends.proxy)


def test_empty_tensors_have_no_address(ends: Ends) -> None:
    (ref,) = translator().requests([Request(Tensor("x", np.zeros((0, 3), np.float32)))], ends.proxy)
    assert ref.inputs == [TensorRef("x", "FP32", [0, 3], 0, 0, 0)]


def test_strings_are_copied(ends: Ends) -> None:
    batch = ends.batch(translator().requests([Request(Tensor("s", TEXTS))], ends.proxy))
    (ref,) = batch.requests[0].inputs
    raw = memoryview(bytes(tensors.read_raw(ends.worker, ref)))
    assert tensors.decode_bytes(raw, ref.shape).tolist() == TEXTS.tolist()


def test_metadata_sent_with_a_request(ends: Ends) -> None:
    plain = Request(parameters='{"a": 1}', request_id="7", outputs=["z", "y"])
    (ref,) = translator().requests([plain], ends.proxy)
    assert (ref.parameters, ref.requested, ref.request_id) == ('{"a": 1}', ["z", "y"], "7")
    assert ref.details is None
    (ref,) = translator(version="2").requests([plain], ends.proxy)
    assert json.loads(ref.parameters) == {"a": 1, VERSION_PARAMETER: "2"}
    (ref,) = translator(details=True).requests([plain], ends.proxy)
    assert (ref.requested, ref.details) == (["y", "z"], RequestDetails(5, 3, 7, None))


def test_an_id_that_is_not_unicode_is_harmless(ends: Ends) -> None:
    (ref,) = translator().requests([Request(request_id=b"\xff")], ends.proxy)
    assert ref.request_id == ""


@pytest.mark.parametrize(
    ("request_", "details", "refusal"),
    [
        (Request(parameters=b"\xff"), False, "a request parameter, its key or its value, is not"),
        (Request(request_id=b"\xff"), True, "the request id is not valid UTF-8"),
        (Request(request_id=b"\xff"), False, None),
        (Request(parameters="{}"), True, None),
    ],
)
def test_texts_that_are_not_unicode_are_refused_by_name(
    request_: Request, details: bool, refusal: str | None
) -> None:
    (reported,) = translator(details=details).refusals([request_])
    assert (reported is None) == (refusal is None)
    assert reported is None or (refusal is not None and f"model m: {refusal}" in reported)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_outputs_match_what_the_worker_wrote(ends: Ends) -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    answer = ends.answer(("y", "INT64", array), ("s", "BYTES", TEXTS))
    (response,) = translator().responses([answer], ends.proxy)
    assert not response.has_error()
    reported = response.reported()
    assert reported["y"].tolist() == array.tolist()
    assert reported["s"].tolist() == TEXTS.tolist()


@pytest.mark.parametrize("lasting", [False, True])
def test_an_answer_can_outlive_the_lanes_next_message(ends: Ends, lasting: bool) -> None:
    own = translator()
    own.lasting = lasting
    (output,) = own.response(
        ends.answer(("y", "INT64", np.ones(4, np.int64))), ends.proxy
    ).output_tensors()
    ends.worker.arena.reset()
    ends.answer(("y", "INT64", np.full(4, 7, np.int64)))
    assert output.as_numpy().tolist() == ([1] * 4 if lasting else [7] * 4)


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("NOT_FOUND", TritonError.NOT_FOUND),
        ("", TritonError.INTERNAL),
        ("message", TritonError.INTERNAL),
    ],
)
def test_an_error_has_the_models_code(ends: Ends, code: str, number: int) -> None:
    response = ResponseRef([], "wrong", ResponseDetails(code))
    assert translator().response(response, ends.proxy).reported() == ("wrong", number)


def test_an_unknown_datatype_is_a_protocol_violation(ends: Ends) -> None:
    answer = ResponseRef([TensorRef("y", "FP17", [1], 0, 0, 2)])
    with pytest.raises(LaneError, match="output y with the datatype 'FP17'"):
        translator().response(answer, ends.proxy)


def test_without_memory_only_one_answer_fails(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(nbytes: int) -> None:
        asked.append(nbytes)
        raise NoMemoryLeft("100 bytes are left")

    monkeypatch.setattr(translate, "MIN_SWEEP_BYTES", 32)
    monkeypatch.setattr(translate, "refuse_more_than_available", refuse)
    own = translator()
    small = ends.answer(("y", "INT64", np.ones(1, np.int64)))
    assert not own.response(small, ends.proxy).has_error()  # too little to be measured
    large = ends.answer(("y", "INT64", np.ones(4, np.int64)))
    text, code = own.response(large, ends.proxy).reported()
    assert text == "tensor y of 32 bytes cannot be passed on: 100 bytes are left"
    assert code == TritonError.UNAVAILABLE
    text, code = own.text_response("y", "x" * 28).reported()
    assert text == "tensor y of 32 bytes cannot be passed on: 100 bytes are left"
    assert code == TritonError.UNAVAILABLE
    assert asked == [3 * 32] * 2  # the stub's copy, tritonserver's, and gRPC's


def test_the_arena_of_a_large_batch_is_released(ends: Ends) -> None:
    large = np.array([b"x" * (64 << 20)], object)
    own = translator()
    own.requests([Request(Tensor("s", large))], ends.proxy)
    assert ends.proxy.arena.large
    own.release_inputs(ends.proxy)
    assert ends.proxy.arena.used == 0


@pytest.mark.parametrize("code", ["NOT_FOUND", "UNAVAILABLE", "CANCELLED", "INTERNAL"])
def test_codes_and_names_correspond(code: str) -> None:
    assert translate.code_name(TritonError("", translate.error_code(code) or 0)) == code


def test_a_code_of_a_later_triton_is_an_internal_error() -> None:
    assert translate.code_name(TritonError("", 99)) == "INTERNAL"


# ── Which requests of a batch tritonserver traces ──


def test_every_request_has_its_trace_context_or_none() -> None:
    begun_ns = time.time_ns()
    trace = trace_of([Request(context='{"traceparent": "a"}'), Request()])
    assert trace is not None
    assert trace.contexts == ['{"traceparent": "a"}', ""]
    assert begun_ns <= trace.begun_ns <= time.time_ns()


def test_an_untraced_batch_has_no_trace() -> None:
    assert trace_of([Request(), Request()]) is None


# ── From an address to a file of shared memory: real files below /dev/shm, mapped as Triton does it ──

PAGE = mmap.PAGESIZE


@pytest.fixture
def region() -> Iterator[Path]:
    """A file of three pages in which every 8 bytes contain their own offset."""
    path = Path(f"/dev/shm/pytriton test {uuid.uuid4().hex}")
    path.write_bytes(numbered(3))
    yield path
    path.unlink(missing_ok=True)


def numbered(pages: int) -> bytes:
    return np.arange(pages * PAGE // 8).tobytes()


class Mapped:
    """Pages of a file, mapped while this object lives."""

    def __init__(
        self, path: Path, pages: int, *, offset: int = 0, flags: int = mmap.MAP_SHARED
    ) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self._mapping = mmap.mmap(fd, pages * PAGE, flags, offset=offset)
        finally:
            os.close(fd)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))


def assert_found(regions: Regions, address: int, nbytes: int, path: Path) -> None:
    """Check that the reported position in the file has the same contents as the address."""
    found = regions.find(address, nbytes)
    assert found is not None
    assert found.path == str(path)
    with open(found.path, "rb") as file:
        file.seek(address - found.start + found.offset)
        assert file.read(nbytes) == ctypes.string_at(address, nbytes)


def test_address_in_a_mapping(region: Path) -> None:
    mapped = Mapped(region, 3)
    regions = Regions()
    for offset, nbytes in [(0, 8), (0, 3 * PAGE), (PAGE + 16, 100), (3 * PAGE - 1, 1), (5, 0)]:
        assert_found(regions, mapped.address + offset, nbytes, region)


def test_a_mapping_that_starts_inside_the_file(region: Path) -> None:
    mapped = Mapped(region, 2, offset=PAGE)
    assert_found(Regions(), mapped.address + 24, 64, region)
    found = Regions().find(mapped.address, 1)
    assert found is not None
    assert found.offset == PAGE


def test_a_region_that_grew_is_found_at_its_old_and_new_address(region: Path) -> None:
    regions = Regions()
    old = Mapped(region, 3)
    assert_found(regions, old.address, 8, region)
    region.write_bytes(numbered(50))
    new = Mapped(region, 50)
    assert_found(regions, new.address + 40 * PAGE, 100, region)
    assert_found(regions, old.address + PAGE, 100, region)
    assert regions.paths() >= {str(region)}


def test_several_regions_are_distinguished(region: Path) -> None:
    other = region.with_name(region.name + "-2")
    other.write_bytes(numbered(1)[::-1])
    try:
        regions = Regions()
        first, second = Mapped(region, 3), Mapped(other, 1)
        for mapped, path in ((first, region), (second, other), (first, region)):
            assert_found(regions, mapped.address, 64, path)
        assert regions.paths() >= {str(region), str(other)}
    finally:
        other.unlink()


def test_other_kinds_of_memory_are_not_in_a_region(region: Path, tmp_path: Path) -> None:
    regions = Regions()
    heap = np.zeros(1000)
    assert regions.find(heap.ctypes.data, 8) is None
    assert regions.find(0, 1) is None
    file = tmp_path / "file"
    file.write_bytes(bytes(PAGE))
    elsewhere = Mapped(file, 1)
    assert regions.find(elsewhere.address, 8) is None
    private = Mapped(region, 1, flags=mmap.MAP_PRIVATE)
    assert regions.find(private.address, 8) is None  # written to, it is no longer the file's


def test_bytes_beyond_the_end_of_a_mapping(region: Path) -> None:
    mapped = Mapped(region, 3)
    regions = Regions()
    end = mapped.address + 3 * PAGE
    assert_found(regions, end - 4, 4, region)
    assert regions.find(end - 4, 1 << 40) is None
    assert regions.find(mapped.address, 1 << 40) is None


def test_a_deleted_file_is_ignored(region: Path) -> None:
    mapped = Mapped(region, 3)
    assert_found(Regions(), mapped.address, 8, region)
    assert str(region) in Regions().paths()
    region.unlink()
    assert Regions().find(mapped.address, 8) is None
    assert str(region) not in Regions().paths()
    region.write_bytes(numbered(3))  # another file of the same name is another file
    assert Regions().find(mapped.address, 8) is None
