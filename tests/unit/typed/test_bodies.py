"""Bodies of requests and responses of typed functions."""

from __future__ import annotations

import enum
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from pytriton.model_config import Tensor
from pytriton.typed.bodies import RequestDecoder, ResultEncoder
from pytriton.typed.markers import MediaType, UploadFile
from pytriton.typed.problems import Problem
from pytriton.typed.signature import signature_of

FORM = "multipart/form-data; boundary=XX"


def arguments(
    function: Callable[..., Any], body: bytes, content_type: str = "application/json"
) -> Any:
    """Return the arguments of a function whose annotations accept them."""
    args, kwargs = RequestDecoder(signature_of(function)).decode(body, content_type)
    return function(*args, **kwargs)


def refused(
    function: Callable[..., Any], body: bytes, content_type: str = "application/json"
) -> Problem:
    with pytest.raises(Problem) as caught:
        arguments(function, body, content_type)
    return caught.value


def form(*fields: tuple[str, bytes]) -> bytes:
    parts = [
        b"--XX\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + data + b"\r\n"
        for head, data in fields
    ]
    return b"".join(parts) + b"--XX--\r\n"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Box(TypedDict):
    corner: Point
    size: int


class Item(msgspec.Struct):
    price: float
    tags: list[str] = []


def plain(text: str, top_k: int = 3, exact: bool = False) -> Any:
    return text, top_k, exact


def test_fields_are_arguments_and_the_functions_defaults_apply() -> None:
    assert arguments(plain, b'{"text":"a"}') == ("a", 3, False)
    assert arguments(plain, b'{"exact":true,"top_k":5,"text":"a"}') == ("a", 5, True)


@pytest.mark.parametrize(
    ("body", "status", "pointer", "detail"),
    [
        (b'{"text":1}', 422, "#/text", "Expected `str`, got `int`"),
        (b'{"text":"a","top_k":"3"}', 422, "#/top_k", "Expected `int`, got `str`"),
        (b'{"text":"a","top_k":null}', 422, "#/top_k", "Expected `int`, got `null`"),
        (b"{}", 422, "#", "Object missing required field `text`"),
        (b"", 422, "#", "Object missing required field `text`"),
        (b'{"text":"a","topk":1}', 422, "#", "Object contains unknown field `topk`"),
        (b"[]", 422, "#", "Expected `object`, got `array`"),
    ],
)
def test_an_invalid_field_is_named(body: bytes, status: int, pointer: str, detail: str) -> None:
    problem = refused(plain, body)
    assert problem.status == status
    assert [(one.pointer, one.detail) for one in problem.errors] == [(pointer, detail)]


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b'{"text":"\xff"}', b'{"text":"a"} x', b"[" * 100_000]
)
def test_a_body_that_is_not_json(body: bytes) -> None:
    assert refused(plain, body).status in (400, 422)


def test_types() -> None:
    def function(
        colour: Colour,
        mode: Literal["a", "b"],
        points: list[Point],
        box: Box,
        items: dict[str, Item],
        data: bytes,
        anything: Any,
        maybe: Optional[int] = None,
    ) -> Any:
        return colour, mode, points, box, items, data, anything, maybe

    body = {
        "colour": "blue",
        "mode": "a",
        "points": [{"x": 1}],
        "box": {"corner": {"x": 1, "y": 2}, "size": 3},
        "items": {"k": {"price": 2.5, "tags": ["t"]}},
        "data": "aGk=",
        "anything": [None, {}],
    }
    assert arguments(function, json.dumps(body).encode()) == (
        Colour.BLUE,
        "a",
        [Point(1.0)],
        {"corner": Point(1.0, 2.0), "size": 3},
        {"k": Item(2.5, ["t"])},
        b"hi",
        [None, {}],
        None,
    )
    body["items"] = {"k": {"price": "x"}}
    (error,) = refused(function, json.dumps(body).encode()).errors
    assert error.pointer == "#/items/price"
    body["items"] = {}
    body["colour"] = "green"
    (error,) = refused(function, json.dumps(body).encode()).errors
    assert (error.pointer, error.detail) == ("#/colour", "Invalid enum value 'green'")


def test_an_only_object_parameter_gets_the_whole_body() -> None:
    def point(point: Point) -> Any:
        return point

    def box(box: Box) -> Any:
        return box

    def anything(data: dict[str, int]) -> Any:
        return data

    def listed(values: list[int]) -> Any:
        return values

    assert arguments(point, b'{"x":1}') == Point(1.0)
    assert arguments(box, b'{"corner":{"x":1},"size":2}') == {"corner": Point(1.0), "size": 2}
    assert arguments(anything, b'{"a":1}') == {"a": 1}
    assert arguments(listed, b'{"values":[1]}') == [1]
    assert refused(point, b'{"x":"1"}').errors[0].pointer == "#/x"


def test_arrays() -> None:
    def function(
        free: np.ndarray,
        typed: npt.NDArray[np.float32],
        shaped: Annotated[npt.NDArray[np.uint8], Tensor((2, -1), np.uint8)],
    ) -> Any:
        return free, typed, shaped

    free, typed, shaped = arguments(
        function, b'{"free":[1,2],"typed":[[0.1]],"shaped":[[1],[255]]}'
    )
    assert (free.dtype.kind, typed.dtype, shaped.dtype) == ("i", np.float32, np.uint8)
    assert (free.tolist(), shaped.tolist()) == ([1, 2], [[1], [255]])
    assert typed[0, 0] == np.float32(0.1)


#: numpy 1.23 creates an array of lists, with a warning.
RAGGED = f"Expected nested lists of {'uint8' if np.__version__ < '1.24' else 'equal lengths'}"


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")
@pytest.mark.parametrize(
    ("array", "detail"),
    [
        ("[[1],[2,3]]", RAGGED),
        ("[[1]]", "Expected an array of shape [2, -1], got [1, 1]"),
        ("[[1],[300]]", "Expected values that fit into uint8"),
        ("[[1],[-1]]", "Expected values that fit into uint8"),
        ("[[1],[1.5]]", "Expected nested lists of integers (uint8), got fractions"),
        ('[["1"],["2"]]', "Expected nested lists of uint8"),
        ("[[true],[false]]", "Expected nested lists of uint8"),
        ("[[null],[1]]", "Expected nested lists of uint8"),
        ("{}", "Expected"),
    ],
)
def test_an_array_with_invalid_values_is_refused(array: str, detail: str) -> None:
    def function(x: Annotated[npt.NDArray[np.uint8], Tensor((2, -1), np.uint8)]) -> Any:
        return x

    (error,) = refused(function, b'{"x":' + array.encode() + b"}").errors
    assert error.pointer == "#/x"
    assert error.detail.startswith(detail)


def test_forms() -> None:
    def function(
        text: str, image: UploadFile, top_k: int = 3, flags: Optional[list[bool]] = None
    ) -> Any:
        return text, image.data, image.filename, top_k, flags

    body = form(
        ('name="text"', b"{not json"),
        ('name="image"; filename="C:\\x\\..\\cat.jpg"', b"\0\r\n--X\r\n"),
        ('name="top_k"', b"5"),
        ('name="flags"', b"true"),
        ('name="flags"', b"0"),
    )
    assert arguments(function, body, FORM) == (
        "{not json",
        b"\0\r\n--X\r\n",
        "cat.jpg",
        5,
        [True, False],
    )
    problem = refused(function, form(('name="text"', b"\xff"), ('name="other"', b"1")), FORM)
    assert {(one.pointer, one.detail) for one in problem.errors} == {
        ("#/text", "Expected text in UTF-8: invalid start byte at byte 0"),
        ("#/image", "Missing required field"),
        ("#/other", "Unknown field"),
    }


def test_urlencoded_forms_and_curls_default_content_type() -> None:
    kind = "application/x-www-form-urlencoded"
    assert arguments(plain, b"text=a+%26b&top_k=4&exact=true", kind) == ("a &b", 4, True)
    assert arguments(plain, b'{"text": "a"}', kind) == ("a", 3, False)
    assert refused(plain, b"text=a&top_k=x", kind).errors[0].pointer == "#/top_k"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--XX",
        b"--XX--"[:-1],
        b"--XX\r\n\r\n",
        b"--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XX--",
        b'--XX\r\nContent-Disposition: form-data; name="text"\r\n\r\nx',
        b'--XXY\r\nContent-Disposition: form-data; name="text"\r\n\r\nx\r\n--XX--',
        b"--XX\r\n" + b"A: " + b"x" * 20_000 + b"\r\n\r\nx\r\n--XX--",
    ],
)
def test_a_broken_multipart_body(body: bytes) -> None:
    assert refused(plain, body, FORM).status == 400


def test_limits_and_boundaries_of_a_multipart_body() -> None:
    many = form(*[('name="text"', b"x")] * 1001)
    assert refused(plain, many, FORM).status == 413
    for head in ("multipart/form-data", "multipart/form-data; boundary=" + "x" * 71):
        assert refused(plain, form(), head).status == 400
    assert refused(plain, b"x", "text/csv").status == 415


def test_an_only_binary_parameter_gets_the_raw_body() -> None:
    def raw(data: bytes) -> Any:
        return data

    def upload(file: UploadFile) -> Any:
        return file.data, file.content_type

    assert arguments(raw, b"\0{", "application/octet-stream") == b"\0{"
    assert arguments(raw, b"\0{", "") == b"\0{"
    assert arguments(raw, b'{"data":"aGk="}') == b"hi"
    assert arguments(raw, form(('name="data"', b"x")), FORM) == b"x"
    assert arguments(upload, b"x", "audio/wav") == (b"x", "audio/wav")


def test_an_uploaded_file_is_read_as_in_a_plain_function_of_fastapi() -> None:
    def read(upload: UploadFile) -> Any:
        first = upload.file.read(1)
        return first, upload.file.read(), upload.size, upload.file.tell(), upload.data

    body = form(('name="upload"; filename="a.txt"', b"hello"))
    assert arguments(read, body, FORM) == (b"h", b"ello", 5, 5, b"hello")


def test_an_uploaded_image_is_opened_from_its_file() -> None:
    image = pytest.importorskip("PIL.Image")

    def size(upload: UploadFile) -> Any:
        return image.open(upload.file).size

    content = io.BytesIO()
    image.new("RGB", (3, 2)).save(content, "PNG")
    assert arguments(size, content.getvalue(), "image/png") == (3, 2)


def test_images() -> None:
    image = pytest.importorskip("PIL.Image")

    def size(picture: Any) -> Any:
        return picture.size

    size.__annotations__["picture"] = image.Image
    buffer = io.BytesIO()
    image.new("RGB", (3, 2)).save(buffer, "png")
    assert arguments(size, buffer.getvalue(), "image/png") == (3, 2)
    assert arguments(size, form(('name="picture"; filename="x"', buffer.getvalue())), FORM) == (
        3,
        2,
    )
    for body, kind in ((b"no image", "image/png"), (b'{"picture":"aGk="}', "application/json")):
        (error,) = refused(size, body, kind).errors
        assert error.pointer == "#/picture"
        assert error.detail.startswith("Expected an image file")


@pytest.mark.filterwarnings("ignore:Image size")
def test_an_image_of_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")

    def measure(picture: Any) -> Any:
        return picture.size

    def packed(width: int) -> bytes:
        buffer = io.BytesIO()
        image.new("1", (width, 1000)).save(buffer, "PNG")
        return buffer.getvalue()

    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 100_000)
    measure.__annotations__["picture"] = image.Image
    assert arguments(measure, packed(100), "image/png") == (100, 1000)
    (error,) = refused(measure, packed(101), "image/png").errors
    assert "more than 100000 pixels" in error.detail
    (error,) = refused(measure, b"none", "image/png").errors
    assert error.detail == "Expected an image file"  # without the address of an object


def test_hostile_forms() -> None:
    def call(file: UploadFile, numbers: Optional[list[Any]] = None) -> Any:
        return file.filename

    def named(name: str) -> Any:
        return arguments(call, form((f'name="file"; filename="{name}"', b"")), FORM)

    names = {
        "../../etc/passwd": "passwd",
        "C:\\\\a\\\\b.png": "b.png",
        "..": "",
        "a/..": "",
        "/": "",
        "a\nb\0c": "abc",
    }
    assert {name: named(name) for name in names} == names
    deep = form(('name="file"', b""), ('name="numbers"', b"[" * 200_000))
    assert refused(call, deep, FORM).errors[0].pointer == "#/numbers"

    def whole(point: Point) -> Any:
        return point

    problem = refused(whole, form(('name="x"', b"\xff")), FORM)
    assert (problem.status, problem.errors[0].pointer) == (422, "#/x")


def test_a_missing_body_is_not_an_empty_file() -> None:
    def size(data: bytes) -> Any:
        return len(data)

    def maybe(data: bytes = b"12") -> Any:
        return len(data)

    assert arguments(size, b"", "application/octet-stream") == 0
    assert refused(size, b"", "").errors[0].detail.endswith("missing required field `data`")
    assert arguments(maybe, b"", "") == 2


def test_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Customer(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        name: str
        age: int = pydantic.Field(ge=0)

    def one(customer: Any) -> Any:
        return customer

    def two(customers: Any, top: Any = 1) -> Any:
        return customers, top

    one.__annotations__["customer"] = Customer
    two.__annotations__.update(customers=list[Customer], top=Annotated[int, pydantic.Field(gt=0)])
    customer = Customer(name="a", age=1)
    assert arguments(one, b'{"name":"a","age":1}') == customer
    assert arguments(two, b'{"customers":[{"name":"a","age":1}]}') == ([customer], 1)
    problem = refused(one, b'{"name":1,"age":-1}')
    assert [one.pointer for one in problem.errors] == ["#/name", "#/age"]
    problem = refused(two, b'{"customers":[{"name":"a","age":1},{"name":"b"}],"top":0}')
    assert [one.pointer for one in problem.errors] == ["#/customers/1/age", "#/top"]
    assert refused(one, b"{").status == 400
    assert arguments(one, form(('name="name"', b"a"), ('name="age"', b"1")), FORM) == customer
    assert ResultEncoder(list[Customer]).encode([customer]) == b'[{"name":"a","age":1}]'
    assert ResultEncoder(Any).encode({"c": customer}) == b'{"c":{"name":"a","age":1}}'


@pytest.mark.parametrize(
    ("annotation", "result", "body", "media_type"),
    [
        (Any, {"a": [1, 2.5, None]}, b'{"a":[1,2.5,null]}', "application/json"),
        (Any, msgspec.Raw(b'{"label": null}'), b'{"label": null}', "application/json"),
        (str, "hé", '"hé"'.encode(), "application/json"),
        (list[Point], [Point(1.0)], b'[{"x":1.0,"y":0.0}]', "application/json"),
        (Colour, Colour.RED, b'"red"', "application/json"),
        (Any, np.arange(4, dtype=np.int16).reshape(2, 2), b"[[0,1],[2,3]]", "application/json"),
        (float, np.float32(0.5), b"0.5", "application/json"),
        (None, None, b"null", "application/json"),
        (bytes, b"\0", b"\0", "application/octet-stream"),
        (bytes, memoryview(b"\0"), b"\0", "application/octet-stream"),
        (Annotated[bytes, MediaType("image/gif")], b"GIF", b"GIF", "image/gif"),
        (Annotated[str, MediaType("text/html")], "<b>", b"<b>", "text/html"),
    ],
)
def test_results(annotation: Any, result: Any, body: bytes, media_type: str) -> None:
    encoder = ResultEncoder(annotation)
    assert (encoder.encode(result), encoder.media_type) == (body, media_type)


@pytest.mark.parametrize(
    ("annotation", "result"),
    [(Any, object()), (bytes, 3), (Any, np.ma.masked_array([1], [True]))],
)
def test_an_unserializable_result_is_an_error(annotation: Any, result: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        ResultEncoder(annotation).encode(result)


def test_whole_numbers_are_integers_as_in_json_schema() -> None:
    def call(n: int, rows: list[int], other: Any = None) -> Any:
        return n, rows, other

    assert arguments(call, b'{"n":2.0,"rows":[1,3e2],"other":0.5}') == (2, [1, 300], 0.5)
    problem = refused(call, b'{"n":2.0,"rows":[1.5]}')
    assert (problem.errors[0].pointer, problem.errors[0].detail) == (
        "#/rows/0",
        "Expected `int`, got `float`",
    )


def test_an_invalid_key_is_reported_where_it_is() -> None:
    def call(ages: dict[int, str], top: int = 1) -> Any: ...

    problem = refused(call, b'{"ages":{"x":"a"}}')
    assert (problem.errors[0].pointer, problem.errors[0].detail) == (
        "#/ages",
        "Expected `int`, got `str`",
    )


def test_requests_do_not_share_a_mutable_default() -> None:
    def call(names: list[str] = []) -> list[str]:  # noqa: B006
        names.append("a")
        return names

    assert [arguments(call, b"{}") for _ in range(2)] == [["a"], ["a"]]


def test_positional_only_parameters_with_defaults() -> None:
    def call(a: int = 1, b: int = 2, /, c: int = 3) -> Any:
        return a, b, c

    assert arguments(call, b"{}") == (1, 2, 3)
    assert arguments(call, b'{"b":5}') == (1, 5, 3)


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (float, float("nan")),
        (Optional[float], float("inf")),
        (Any, {"a": [1.0, float("-inf")]}),
        (list[Point], [Point(float("nan"))]),
        (npt.NDArray[np.float32], np.array([1, np.nan], np.float32)),
        (int, "one"),
        (int, 1.5),
        (list[int], None),
        (Colour, "green"),
        (list[Point], [{"y": 1.0}]),
    ],
)
def test_a_response_never_violates_its_schema(annotation: Any, result: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"NaN|does not match its annotation"):
        ResultEncoder(annotation).encode(result)


def test_a_result_of_another_type_is_converted() -> None:
    assert ResultEncoder(int).encode(np.float64(2.0)) == b"2"
    assert ResultEncoder(list[Point]).encode(({"x": 1},)) == b'[{"x":1}]'
    assert ResultEncoder(Optional[float]).encode(None) == b"null"
    assert ResultEncoder(list[float]).encode(np.array([0.5, 1.0])) == b"[0.5,1.0]"


def test_results_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Score(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        value: Optional[float]

    encoder = ResultEncoder(Score)
    assert encoder.encode(Score(value=None)) == b'{"value":null}'
    assert encoder.encode({"value": 1}) == b'{"value":1.0}'
    with pytest.raises(ValueError, match="NaN"):
        encoder.encode(Score(value=float("nan")))
    with pytest.raises(ValueError, match="value"):
        encoder.encode({"value": "x"})

    class Count(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        n: int

    changed = Count(n=1)
    changed.n = cast(Any, 4.0)
    assert ResultEncoder(Count).encode(changed) == b'{"n":4}'


def test_the_code_of_a_class_does_not_run_for_a_result() -> None:
    @dataclass
    class Checked:
        total: int

        def __post_init__(self) -> None:
            created.append(self.total)

    created: list[int] = []
    assert ResultEncoder(list[Checked]).encode([Checked(3)]) == b'[{"total":3}]'
    assert created == [3]


def test_arrays_in_results() -> None:
    spec = Annotated[np.ndarray, Tensor((2, -1), np.float32)]
    assert ResultEncoder(spec).encode(np.ones((2, 1), np.float32)) == b"[[1.0],[1.0]]"
    assert ResultEncoder(spec).encode([[1], [2]]) == b"[[1.0],[2.0]]"
    assert ResultEncoder(npt.NDArray[np.int32]).encode(np.array([2.0])) == b"[2]"
    assert (
        ResultEncoder(npt.NDArray[np.float32]).encode(np.array([0.5, 2.0**70]))
        == b"[0.5,1.1805916207174113e21]"
    )
    assert ResultEncoder(npt.NDArray[np.bool_]).encode([]) == b"[]"
    rows = Annotated[np.ndarray, Tensor((-1, 3), np.float32)]
    assert ResultEncoder(rows).encode(np.zeros((0, 3))) == b"[]"
    assert ResultEncoder(Optional[npt.NDArray[np.int32]]).encode(None) == b"null"
    for wrong in (np.ones((1, 2), np.float32), [1.0, 2.0], [["a"], ["b"]]):
        with pytest.raises(TypeError, match="does not match its annotation"):
            ResultEncoder(spec).encode(wrong)
