"""The OpenAPI operation of a typed function: its schemas, and their names."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, Union

import pytest

from pytriton._protocol.routes import COMPONENT_NAME
from pytriton.exceptions import PyTritonValidationError
from pytriton.typed.markers import MediaType, UploadFile
from pytriton.typed.model import make_model
from pytriton.typed.schema import operation_of
from pytriton.typed.signature import signature_of

_T = TypeVar("_T")


@dataclass
class Page(Generic[_T]):
    items: list[_T]


def result_of(function: Any) -> Any:
    operation, _ = operation_of(signature_of(function))
    return operation["responses"]["200"]["content"]


def test_names_of_generic_types_become_valid_schema_names() -> None:
    def plain(page: Page[int]) -> list[Page[str]]:
        return []

    _, schemas = operation_of(signature_of(plain))
    assert len(schemas) == 3
    assert all(map(COMPONENT_NAME.fullmatch, schemas))
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel, Generic[_T]):  # type: ignore[misc, name-defined]
        item: _T

    def modelled(page: Any) -> Any:
        return page

    modelled.__annotations__.update(page=Model[int], **{"return": list[Model[str]]})
    operation, schemas = operation_of(signature_of(modelled))
    assert all(map(COMPONENT_NAME.fullmatch, schemas))
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.removeprefix("#/components/schemas/") in schemas


def test_types_of_the_same_name_have_separate_schemas() -> None:
    pydantic = pytest.importorskip("pydantic")
    first = pydantic.create_model("Item", x=(int, ...))
    second = pydantic.create_model("Item", y=(first, ...), z=(str, ...))

    def call(one: Any, other: Any) -> Any:
        return one

    call.__annotations__.update(one=first, other=second, **{"return": first})
    operation, schemas = operation_of(signature_of(call))
    members = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    names = {key: one["$ref"].rpartition("/")[2] for key, one in members.items()}
    assert set(schemas[names["one"]]["properties"]) == {"x"}
    assert set(schemas[names["other"]]["properties"]) == {"y", "z"}
    inner = schemas[names["other"]]["properties"]["y"]["$ref"].rpartition("/")[2]
    assert set(schemas[inner]["properties"]) == {"x"}


def test_a_pydantic_result_is_described_as_serialized() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Sides(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        a: int

        @pydantic.computed_field  # type: ignore[prop-decorator, untyped-decorator]
        @property
        def area(self) -> int:
            return self.a**2

    def call(sides: Any) -> Any:
        return sides

    call.__annotations__.update(sides=Sides, **{"return": Sides})
    operation, schemas = operation_of(signature_of(call))
    taken = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    returned = result_of(call)["application/json"]["schema"]["$ref"]
    assert set(schemas[taken.rpartition("/")[2]]["properties"]) == {"a"}
    assert set(schemas[returned.rpartition("/")[2]]["properties"]) == {"a", "area"}


def test_events_and_files() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    event = result_of(numbers)["text/event-stream"]["schema"]
    data = event["properties"]["data"]
    assert data == {
        "type": "string", "contentMediaType": "application/json", "contentSchema": {"type": "integer"}
    }  # fmt: skip

    def upload(file: UploadFile, more: list[UploadFile]) -> None: ...

    operation, _ = operation_of(signature_of(upload))
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    assert form == {"file": file, "more": {"type": "array", "items": file}}


@pytest.mark.parametrize("value", ["text", "a/b\r\nX: y", "a/" + "b" * 200, "a/b;", "", "a/é"])
def test_an_invalid_media_type_is_refused_immediately(value: str) -> None:
    with pytest.raises(PyTritonValidationError, match="media type"):
        MediaType(value)

    def call() -> Annotated[bytes, MediaType('text/plain; charset=utf-8; a="b c"')]:
        return b""

    assert list(result_of(call)) == ['text/plain; charset=utf-8; a="b c"']


def test_base64_is_described_by_a_pattern_except_in_forms() -> None:
    def upload(data: bytes, more: list[bytes]) -> None: ...

    operation, _ = operation_of(signature_of(upload))
    members = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for one in (members["data"], members["more"]["items"]):
        assert re.search(one["pattern"], "aGk=")
        assert not re.search(one["pattern"], "aGk")
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert "pattern" not in form["data"]


def test_a_default_that_json_lacks_is_not_described() -> None:
    def call(x: float = float("inf"), y: float = 1.5) -> None: ...

    operation, _ = operation_of(signature_of(call))
    members = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert members == {"x": {"type": "number"}, "y": {"type": "number", "default": 1.5}}


class Mixed(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    "annotation",
    [
        Mixed,
        type,
        complex,
        Path,
        Callable[[], int],
        Literal["a", b"b"],
        Union[list[int], set[int]],
        Union[bytes, str],
        dict[tuple[int, int], str],
        list[dict[tuple[int, int], str]],
    ],
)
def test_types_without_a_form_in_json_are_refused(annotation: Any) -> None:
    def call(x: Any) -> None: ...

    call.__annotations__["x"] = annotation
    with pytest.raises(PyTritonValidationError, match=r"parameter 'x' has the type .*in JSON: "):
        make_model([call], None, factory=False)
