"""What JSON cannot carry: half-precision numbers and bytes, as a person writes and reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from pytriton.dispatcher.telemetry.dashboard.tensors import (
    LENGTH,
    UnusableRequestError,
    packed,
    unpacked,
)


def config(datatype: str) -> dict[str, Any]:
    tensor = {"data_type": f"TYPE_{datatype}", "dims": [-1]}
    return {"input": [{"name": "x", **tensor}], "output": [{"name": "y", **tensor}]}


def asked(datatype: str, data: Any, **more: Any) -> bytes:
    given = {"name": "x", "shape": [2], "datatype": datatype, "data": data}
    return json.dumps({"inputs": [given], **more}).encode()


def parts(sent: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    length = int(headers[LENGTH])
    return json.loads(sent[:length]), sent[length:]


def test_numbers_of_half_precision_go_as_bytes() -> None:
    head, blob = parts(*packed(asked("FP16", [[1.5], [-2]]), config("FP16")))
    (given,) = head["inputs"]
    assert given == {
        "name": "x",
        "shape": [2],
        "datatype": "FP16",
        "parameters": {"binary_data_size": 4},
    }
    assert np.frombuffer(blob, np.float16).tolist() == [1.5, -2.0]
    assert head["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]


def test_bf16_is_rounded_as_numpy_does_it() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = [0.1, 1.00390625, 1.01171875, -3.3e38, 1e-40, math.inf, math.nan, 65536.7]
    _, blob = parts(*packed(asked("BF16", values), config("BF16")))
    wanted = np.array(values, np.float32).astype(ml_dtypes.bfloat16)
    assert blob[:-4] == wanted.tobytes()[:-4]
    assert math.isnan(np.frombuffer(blob, ml_dtypes.bfloat16)[6])


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("FP16", ["one"]), ("FP16", [1e9]), ("BF16", [None]), ("BF16", [1e39]), ("FP16", {"a": 1})],
)
def test_numbers_of_another_kind_are_refused(datatype: str, data: Any) -> None:
    with pytest.raises(UnusableRequestError, match=f"input x: .* numbers that fit {datatype}"):
        packed(asked(datatype, data), config(datatype))


@pytest.mark.parametrize(
    "body",
    [
        asked("FP32", [9007199254740993, 2]),
        b"no JSON",
        b"[1]",
        b'{"inputs": 7}',
        b"[" * 100_000,
        b'{"inputs": [7, {"datatype": ["FP16"], "data": 1}]}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_values_and_other_bodies_are_unchanged(body: bytes) -> None:
    assert packed(body, config("FP32")) == (body, {})


def test_selected_outputs_are_unchanged() -> None:
    body = asked("FP32", [1, 2], outputs=[{"name": "y"}])
    assert packed(body, config("STRING")) == (body, {})


def test_other_outputs_stay_json() -> None:
    both = config("FP32")
    both["output"].append({"name": "s", "data_type": "TYPE_STRING", "dims": [1]})
    head, blob = parts(*packed(asked("FP32", [1, 2]), both))
    assert blob == b""
    assert [one["parameters"]["binary_data"] for one in head["outputs"]] == [False, True]


def answer(datatype: str, blob: bytes) -> tuple[bytes, str]:
    output = {"name": "y", "datatype": datatype, "shape": [2]}
    plain = {"name": "n", "datatype": "INT64", "shape": [1], "data": [9007199254740993]}
    with_size = {**output, "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"model_name": "m", "outputs": [plain, with_size]}).encode()
    return head + blob, str(len(head))


@pytest.mark.parametrize(
    ("datatype", "blob", "data"),
    [
        ("FP16", np.array([1.5, -2], np.float16).tobytes(), [1.5, -2.0]),
        ("BF16", b"\x80\x3f\x00\xc0", [1.0, -2.0]),
        ("BYTES", b"\3\0\0\0a<b\2\0\0\0\xff\xfe", ["a<b", {"base64": "//4="}]),
        ("BYTES", b"", []),
        ("BOOL", b"\1\0", [True, False]),
        ("INT8", b"\xff\x7f", [-1, 127]),
        ("UINT8", b"\xff\x7f", [255, 127]),
        ("INT16", np.array([-2, 3], np.int16).tobytes(), [-2, 3]),
        ("UINT16", np.array([65535, 3], np.uint16).tobytes(), [65535, 3]),
        ("INT32", np.array([-2, 3], np.int32).tobytes(), [-2, 3]),
        ("UINT32", np.array([1 << 31, 3], np.uint32).tobytes(), [1 << 31, 3]),
        ("INT64", np.array([-2, 3], np.int64).tobytes(), [-2, 3]),
        ("UINT64", np.array([1 << 63, 3], np.uint64).tobytes(), [1 << 63, 3]),
        ("FP32", np.array([0.5, -2], np.float32).tobytes(), [0.5, -2.0]),
        ("FP64", np.array([0.1, -2], np.float64).tobytes(), [0.1, -2.0]),
        ("NEW", b"\1\2", [{"base64": "AQI="}]),
    ],
)
def test_binary_outputs_are_shown_as_numbers_and_text(
    datatype: str, blob: bytes, data: list[Any]
) -> None:
    plain, output = json.loads(unpacked(*answer(datatype, blob)))["outputs"]
    assert plain["data"] == [9007199254740993]
    assert output == {"name": "y", "datatype": datatype, "shape": [2], "data": data}


def test_an_answer_that_is_all_json_stays_as_it_is() -> None:
    assert unpacked(b'{"error": "no"}', None) == b'{"error": "no"}'
