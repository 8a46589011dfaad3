"""json/: the reader compared with Python's, the writer compared with the reader."""

from __future__ import annotations

import json
import math
import struct
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.frontend.driver import Driver, Refused

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _ask(
    driver: Driver,
    function: str,
    text: str | bytes,
    *,
    depth: int = 64,
    values: int = 1 << 20,
    string: int = 1 << 20,
) -> str:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return driver.ask(function, struct.pack("<IQQ", depth, values, string) + data).decode()


@given(_VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_written_by_python_is_read(
    driver: Driver, value: Any, ascii_only: bool, indent: Any
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json.loads(_ask(driver, "j", text)) == value


def _number(text: str) -> float:
    """Read integers beyond 64 bits as doubles."""
    return int(text) if -(2**63) <= int(text) < 2**64 else float(text)


@given(st.text(alphabet='{}[]":,\\u0123456789eE+-.truefalsn \n\u00e9', max_size=30))
def test_json_validity_matches_python_s(driver: Driver, text: str) -> None:
    try:
        expected = json.loads(
            text, parse_int=_number, parse_constant=lambda word: pytest.fail(word)
        )
    except ValueError:
        expected = ...
    try:
        read = json.loads(_ask(driver, "j", text))
    except Refused:
        read = ...
    if read is ... and expected is not ...:
        # Python keeps lone surrogates, and reads numbers that are larger than all doubles.
        assert "inf" in repr(expected) or any(0xD800 <= ord(c) < 0xE000 for c in str(expected)), (
            expected
        )
    else:
        assert read == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "The document is empty. at 0"),
        (b'{"a":1,}', "Missing a name for object member. at 7"),
        (b"[1 2]", "Missing a comma or ] after an array element. at 3"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b"[1,]", "Invalid value. at 3"),
        (b"01", "Invalid value"),
        (b"1.", "Miss fraction part in number"),
        (b"1e+", "Miss exponent in number"),
        (b"1e400", "Number too big to be stored in double"),
        (b"-", "Invalid value"),
        (b"1 1", "The document root must not be followed by other values. at 2"),
        (b'"\\ud800"', "surrogate pair"),
        (b'"\\ud800\\u0041"', "surrogate pair"),
        (b'"\\udc00"', "surrogate pair"),
        (b'"\\u12g4"', "Incorrect hex digit"),
        (b'"\\x"', "Invalid escape character"),
        (b'"a\nb"', "control character"),
        (b'"a\x00b"', "control character"),
        (b'"abc', "closing quotation mark"),
        (b'"\xff"', "Invalid UTF-8. at 1"),
        (b'"\xed\xa0\x80"', "Invalid UTF-8. at 1"),
        (b"[", "Invalid value. at 1"),
        (b"{", "Missing a name for object member. at 1"),
        (b"[1", "Missing a comma or ] after an array element. at 2"),
        (b'{"a":', "The text is truncated. at 5"),
        (b"nul", "Invalid value"),
        (b"NaNa", "must not be followed"),
        (b"9" * 1101, "more than 1100 characters"),
    ],
)
def test_malformed_input_is_reported(driver: Driver, text: bytes, said: str) -> None:
    with pytest.raises(Refused, match=r"400 bad JSON: .*" + said):
        _ask(driver, "j", text)


def test_depth_is_limited(driver: Driver) -> None:
    for deepest in (1, 63, 64, 65, 256):
        text = "[" * deepest + "]" * deepest
        assert _ask(driver, "j", text, depth=deepest) == text
        with pytest.raises(Refused, match=r"413 .*deeper than the limit"):
            _ask(driver, "j", "[" + text + "]", depth=deepest)
    with pytest.raises(Refused, match=r"413 .*deeper than the limit"):
        _ask(driver, "j", "[" * 150_000, depth=1 << 30)


def test_values_and_strings_are_limited(driver: Driver) -> None:
    assert _ask(driver, "j", '{"a":[1,2]}', values=5) == '{"a":[1,2]}'
    with pytest.raises(Refused, match=r"413 .*more values than the limit"):
        _ask(driver, "j", '{"a":[1,2]}', values=4)
    assert _ask(driver, "j", '"123"', string=5) == '"123"'
    with pytest.raises(Refused, match=r"413 .*longer than the limit"):
        _ask(driver, "j", '"1234"', string=5)


def test_tritons_numbers_beyond_the_standard_are_accepted(driver: Driver) -> None:
    text = "[NaN,Infinity,-Infinity,Inf,-Inf]"
    assert _ask(driver, "j", text) == "[NaN,Infinity,-Infinity,Infinity,-Infinity]"


def test_a_byte_order_mark_is_skipped(driver: Driver) -> None:
    assert _ask(driver, "j", b"\xef\xbb\xbf[1]") == "[1]"


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-0",
        "18446744073709551615",
        "-9223372036854775808",
        "9223372036854775808",
        "1000000000000000000",
    ],
)
def test_integers_are_exact(driver: Driver, text: str) -> None:
    assert json.loads(_ask(driver, "j", text)) == int(text)


def test_the_elements_of_nested_arrays_are_read(driver: Driver) -> None:
    assert (
        _ask(driver, "l", '[[], [1, [2, "x"]], [[[]], null], {}]'.replace(", {}", ""))
        == '1 2 "x" null '
    )
    with pytest.raises(Refused, match="Missing a comma"):
        _ask(driver, "l", "[[1 2]]")


def test_reading_can_resume_at_a_saved_position(driver: Driver) -> None:
    text = '{"data":[[1.5,2],["a\\n"]],"datatype":"FP32","shape":[1,3]}'
    assert _ask(driver, "L", text) == '"FP32" [1,3] [[1.5,2],["a\\n"]]'


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 25))
def test_doubles_are_read_to_the_last_bit(driver: Driver, value: float, digits: int) -> None:
    for text in (repr(value), f"{value:.{digits}e}", f"{value:.{digits}f}"):
        if len(text) <= 1100 and not math.isinf(float(text)):
            assert struct.unpack("<d", driver.ask("d", text.encode())) == (float(text),), text


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740993", "9007199254740992.9999999999999999999999", "9007199254740993.00000000000000000000001",
        "2.2250738585072011e-308", "2.2250738585072014e-308", "4.9406564584124654e-324", "2.4703282292062327e-324",
        "2.4703282292062328e-324", "1.7976931348623158e308", "123456789012345678901234567890", "0.1e-400", "1e23",
        "8.5e22", "1" + "0" * 300, "0." + "0" * 300 + "1", "17976931348623157" + "0" * 292 + ".5",
    ],
)  # fmt: skip
def test_doubles_that_are_hard_to_round_are_read_exactly(driver: Driver, text: str) -> None:
    assert struct.unpack("<d", driver.ask("d", text.encode())) == (float(text),)


def _digits(text: str) -> int:
    return len(text.lower().partition("e")[0].replace("-", "").replace(".", "").strip("0"))


@given(st.lists(st.floats(), min_size=1))
def test_doubles_round_trip(driver: Driver, values: list[float]) -> None:
    written = driver.ask("D", struct.pack(f"<{len(values)}d", *values)).decode().split()
    for text, value in zip(written, values):
        read = float(text)
        assert struct.pack("<d", read) == struct.pack("<d", value) or math.isnan(value), text
        if math.isfinite(value) and math.frexp(value)[0] != 0.5:
            assert _digits(text) == _digits(repr(value)), (text, value)


@given(st.lists(st.floats(width=32), min_size=1))
@example([48032848.0])
@example([1.5898553944356302e35])
def test_floats_round_trip(driver: Driver, values: list[float]) -> None:
    written = driver.ask("F", struct.pack(f"<{len(values)}f", *values)).decode().split()
    for text, value in zip(written, values):
        assert np.float32(float(text)) == np.float32(value) or math.isnan(value), text
        shortest = str(np.float32(value))
        # In the middle between two floats (48032850), it depends on the reader: the frontend writes more digits.
        middle = any(
            np.float32(float(shortest) * (1 + side * sys.float_info.epsilon)) != np.float32(value)
            for side in (-1, 1)
        )
        if math.isfinite(value) and math.frexp(value)[0] != 0.5 and not middle:
            assert _digits(text) == _digits(shortest), (text, value)


def test_numbers_are_written_in_the_shortest_form(driver: Driver) -> None:
    values = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.1,
        1e21,
        1e20,
        1e-5,
        1e-7,
        5e-324,
        math.nan,
        math.inf,
        -math.inf,
    ]
    assert driver.ask("D", struct.pack(f"<{len(values)}d", *values)).split() == [
        b"0.0", b"-0.0", b"1.0", b"-1.5", b"0.1", b"1e21", b"100000000000000000000.0", b"0.00001", b"1e-7", b"5e-324",
        b"NaN", b"Infinity", b"-Infinity",
    ]  # fmt: skip


@given(st.text())
def test_strings_round_trip(driver: Driver, text: str) -> None:
    written = driver.ask("S", text.encode())
    assert json.loads(written) == text


def test_invalid_utf8_is_refused_or_repaired(driver: Driver) -> None:
    with pytest.raises(Refused, match=r'^"a\?\\"\?\?"$'):
        driver.ask("S", b'a\xff"\xc3\xa4'[:-1] + b"\xe2")
