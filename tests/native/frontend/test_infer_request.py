"""http/infer_request: the contents of a call, from JSON in any order and the binary tensors behind it."""

from __future__ import annotations

import itertools
import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frontend.driver import Driver, Refused


def _ask(driver: Driver, request: Any, binary: bytes = b"", **sizes: int) -> list[str]:
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    size = sizes.get("size", len(text))
    return driver.ask("i", struct.pack("<I", size) + text + binary).decode().splitlines()


def _input(**more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [2], "datatype": "FP32", **more}


def _hex(layout: str, *values: Any) -> str:
    return struct.pack("<" + layout, *values).hex()


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["name", "shape", "datatype", "data"]))
)
def test_members_may_come_in_any_order(driver: Driver, order: tuple[str, ...]) -> None:
    whole = _input(data=[[1], [2.5]])
    request = {"inputs": [{key: whole[key] for key in order}] * 2}
    line = f"input x FP32 2:{_hex('2f', 1, 2.5)}"
    assert _ask(driver, request) == [line, line, "binary_output 0"]


@pytest.mark.parametrize(
    ("datatype", "layout", "values"),
    [
        ("BOOL", "2?", [True, False]),
        ("INT8", "2b", [-128, 127]),
        ("INT16", "2h", [-(2**15), 2**15 - 1]),
        ("INT32", "2i", [-(2**31), 2**31 - 1]),
        ("INT64", "2q", [-(2**63), 2**63 - 1]),
        ("UINT8", "2B", [0, 255]),
        ("UINT16", "2H", [0, 2**16 - 1]),
        ("UINT32", "2I", [0, 2**32 - 1]),
        ("UINT64", "2Q", [0, 2**64 - 1]),
        ("FP32", "2f", [0.1, 3.4028234663852886e38]),
        ("FP64", "2d", [0.1, 1e300]),
    ],
)
def test_values_of_each_type(driver: Driver, datatype: str, layout: str, values: list[Any]) -> None:
    said = _ask(driver, {"inputs": [_input(datatype=datatype, data=values)]})
    assert said[0] == f"input x {datatype} 2:{_hex(layout, *values)}"


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("INT32", 2**31), ("UINT8", 256), ("UINT16", 2**16),
        ("UINT32", 2**32), ("FP32", 3.5e38), ("FP32", -1e300),
    ],
)  # fmt: skip
def test_mismatched_tensors_are_refused(driver: Driver, datatype: str, value: float) -> None:
    with pytest.raises(Refused, match=f"400 .*out of the range of {datatype}"):
        _ask(driver, {"inputs": [_input(datatype=datatype, data=[0, value])]})


@given(st.lists(st.text(), max_size=5))
def test_strings_are_prefixed_with_their_sizes(driver: Driver, texts: list[str]) -> None:
    said = _ask(driver, {"inputs": [_input(shape=[len(texts)], datatype="BYTES", data=texts)]})
    data = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    assert said[0] == f"input x BYTES {len(texts)}:{data.hex()}"


def test_binary_tensors_follow_the_json_in_order(driver: Driver) -> None:
    sizes = [8, 0, 4]
    inputs = [_input(shape=[size // 4], parameters={"binary_data_size": size}) for size in sizes]
    data = random.Random(1).randbytes(12)
    said = _ask(driver, {"inputs": inputs, "parameters": {"binary_data_output": True}}, data)
    assert said == [
        f"input x FP32 2:{data[:8].hex()}",
        "input x FP32 0:",
        f"input x FP32 1:{data[8:].hex()}",
        "binary_output 1",
    ]


def test_parameters_outputs_and_regions(driver: Driver) -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 4}
    request = {
        "id": "\u00e4\n",
        "parameters": {"a": 1, "b": "t", "c": True, "d": 0.5},
        "inputs": [_input(parameters=region)],
        "outputs": [
            {
                "name": "one",
                "parameters": {"binary_data": True, "classification": 3, "unknown": [{}]},
            },
            {"name": "two", "parameters": {"binary_data": False, **region}},
            {"parameters": {"classification": 0}, "name": "three"},
        ],
        "unknown": [1, {"x": None}],
    }
    assert _ask(driver, request) == [
        "id \u00e4", "", "parameter a 1 1", "parameter b 0 t", "parameter c 2 1", "parameter d 3 0.5",
        "input x FP32 2: region r 4 8", "output one", "classes one 3", "output two", "two  region r 4 8",
        "output three",
        "flags one 1", "flags two 2", "binary_output 0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "400 .*non-existing object member 'inputs'"),
        ([], "400 .*non-existing object member 'inputs'"),
        ({"inputs": {}}, "400 .*'inputs': attempt to access JSON non-array"),
        ({"inputs": [1]}, "400 .*an element is not an object"),
        ({"inputs": [{}]}, "400 .*But no field is set"),
        ({"inputs": [_input(data=[1, 2], parameters={"binary_data_size": 8})]}, "400 .*set 'data' 'binary_data_size'"),
        ({"inputs": [{"data": [1], "shape": [1], "datatype": "FP32"}]}, "400 .*object member 'name'"),
        ({"inputs": [{"name": "x", "data": [1], "datatype": "FP32"}]}, "400 .*object member 'shape'"),
        ({"inputs": [{"name": "x", "data": [1], "shape": [1]}]}, "400 .*object member 'datatype'"),
        ({"inputs": [_input(data=[1])]}, "400 .*Shape does not match"),
        ({"inputs": [_input(data=[1, 2, 3])]}, "400 .*Shape does not match"),
        ({"inputs": [_input(data=1)]}, "400 .*non-array as array"),
        ({"inputs": [_input(data=[1, {}])]}, "400 .*non-number as double"),
        ({"inputs": [_input(data=[1, None])]}, "400 .*non-number as double"),
        ({"inputs": [_input(datatype="BYTES", data=["a", 1])]}, "400 .*non-string as string"),
        ({"inputs": [_input(datatype="FP16", data=[1, 2])]}, "400 receiving FP16 data via JSON is not supported"),
        ({"inputs": [_input(datatype="NONE", data=[1, 2])]}, "400 invalid datatype for input x"),
        ({"inputs": [_input(shape=[2.0], data=[1, 2])]}, "400 .*'shape'.*unsigned"),
        ({"inputs": [_input(shape=[-1], data=[1, 2])]}, "400 .*'shape'.*unsigned"),
        ({"inputs": [_input(shape=[1] * 65, data=[1])]}, "400 .*'shape'.*64 dimensions"),
        ({"inputs": [_input(shape=[2**63], data=[1])]}, "400 .*'shape'.*too large"),
        ({"inputs": [_input(shape=[2**32, 2**32], data=[1])]}, "400 too many elements"),
        ({"inputs": [_input(shape=[2**50], data=[1])]}, "400 .*Shape does not match"),
        ({"inputs": [_input(parameters={"binary_data_size": 8})]}, "400 .*expecting 5 additional bytes"),
        ({"inputs": [_input(parameters={"binary_data_size": 2})]}, "400 .*1 bytes are left"),
        ({"inputs": [_input(parameters={"shared_memory_region": "r"})]}, "400 .*needs 'shared_memory_byte_size'"),
        ({"inputs": [], "outputs": [{}]}, "400 .*object member 'name'"),
        ({"inputs": [], "parameters": {"a": []}}, "400 parameter 'a' has invalid type"),
        ({"inputs": [], "id": 5}, "400 .*'id': attempt to access JSON non-string"),
        (b'{"inputs":[{"data":[1,],"name":"x","shape":[1],"datatype":"FP32"}]}', "400 .*Invalid value. at 22"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1}]}', "400 .*Missing a comma"),
        (b'{"inputs":[{"name":"x","name":"y"}]}', "400 .*'name': it occurs twice"),
        (b'{"id":"a","id":"b","inputs":[]}', "400 .*'id' occurs twice"),
        (b'{"inputs":[]} {}', "400 .*must not be followed"),
        (b'{"x":' + b"[" * 100, "413 .*deeper than the limit"),
        (b'{"x":[' + b"1," * 20000, "413 .*more values than the limit"),
    ],
)  # fmt: skip
def test_malformed_input_is_reported(driver: Driver, request_: Any, said: str) -> None:
    text = request_ if isinstance(request_, bytes) else json.dumps(request_).encode()
    binary = b"abc" if b"binary_data_size" in text and b"data'" not in text else b""
    with pytest.raises(Refused, match=said):
        _ask(driver, text, binary)


def test_fuzzer_findings_can_be_replayed(replay_program: Path, tmp_path: Path) -> None:
    """Any compiler builds the target, and it accepts any bytes."""
    seeds = [b"", b"\x00", b"\x00\x30" + json.dumps({"inputs": [_input(data=[1, 2])]}).encode()]
    files = [tmp_path / str(i) for i in range(len(seeds))]
    for file, seed in zip(files, seeds):
        file.write_bytes(seed)
    done = subprocess.run([replay_program, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3 inputs\n"), done.stderr
