"""`call`: how command-line words become arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytriton._cli.commands.call import read_arguments

SCHEMAS: dict[str, Any] = {
    "Point": {
        "type": "object",
        "properties": {"x": {"type": "number"}, "label": {"type": "string"}},
        "required": ["x"],
    },
    "Mode": {"enum": ["fast", "slow"]},
    "Level": {"enum": [1, 2]},
    "Tree": {"anyOf": [{"$ref": "#/components/schemas/Tree"}, {"type": "integer"}]},
}


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


FILE = {"type": "string", "contentEncoding": "base64"}
MEMBERS: dict[str, Any] = {
    "text": {"type": "string"},
    "nullable": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "mixed": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "maybe_list": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "point": reference("Point"),
    "mode": reference("Mode"),
    "level": reference("Level"),
    "tree": reference("Tree"),
    "any": {},
    "file": FILE,
    "files": {"type": "array", "items": FILE},
}


def operation(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": schema}, **more}}}


FUNCTION = operation({"type": "object", "properties": MEMBERS, "additionalProperties": False})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["text=hello"], {"text": "hello"}),
        (["text=12"], {"text": "12"}),
        (["text=null"], {"text": "null"}),
        (["text="], {"text": ""}),
        (["text=a=b"], {"text": "a=b"}),
        (["text=@@handle"], {"text": "@handle"}),
        (["nullable=null"], {"nullable": "null"}),
        (["count=-3"], {"count": -3}),
        (["ratio=2", "flag=false"], {"ratio": 2, "flag": False}),
        (["tags=a"], {"tags": ["a"]}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (['tags=["a", "1"]'], {"tags": ["a", "1"]}),
        (["numbers=1", "numbers=2"], {"numbers": [1, 2]}),
        (["mixed=1"], {"mixed": 1}),
        (["mixed=one"], {"mixed": "one"}),
        (["mixed=true"], {"mixed": "true"}),
        (["maybe_list=a"], {"maybe_list": "a"}),
        (["maybe_list=a", "maybe_list=b"], {"maybe_list": ["a", "b"]}),
        (['point={"x": 1}'], {"point": {"x": 1}}),
        (["mode=fast"], {"mode": "fast"}),
        (["level=2"], {"level": 2}),
        (["tree=2"], {"tree": 2}),
        (["any=1", "text=x"], {"any": 1, "text": "x"}),
        (["any=one"], {"any": "one"}),
    ],
)
def test_values_have_the_types_of_the_schema(words: list[str], expected: dict[str, Any]) -> None:
    assert read_arguments(words, FUNCTION, SCHEMAS) == (None, expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["count=x"], "count: 'x' is not a whole number"),
        (["count=1.5"], "count: '1.5' is not a whole number"),
        (["flag=yes"], "flag: 'yes' is not true or false"),
        (["numbers=a"], "numbers: 'a' is not a whole number"),
        (["point=x"], "point: 'x' is not an object in JSON"),
        (["text=a", "text=b"], "text is given more than once"),
        (["typo=1"], "there is no parameter typo; the parameters are: text, "),
        (["text"], "'text' is not NAME=VALUE"),
        (["=x"], "'=x' is not NAME=VALUE"),
        (["file=@/no/such"], "file: /no/such: No such file"),
        (["text=@/no/such"], "text: /no/such: No such file"),
        (["@/no/such"], "the body: /no/such: No such file"),
    ],
)
def test_errors_name_the_field(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        read_arguments(words, FUNCTION, SCHEMAS)


def test_files_are_opened_only_where_files_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    at = f"@{tmp_path}/a.json"
    _, found = read_arguments(
        [f"file={at}", f"files={at}", f"files={at}", f"text={at}", f"point={at}"], FUNCTION, SCHEMAS
    )
    opened = [found["file"], *found["files"]]
    assert [one.read() for one in opened] == [b'{"x": 1}'] * 3
    for one in opened:
        one.close()
    assert found["text"] == '{"x": 1}'
    assert found["point"] == {"x": 1}
    (tmp_path / "a.json").write_text("x")
    with pytest.raises(ValueError, match=r"count: .* is not JSON"):
        read_arguments([f"count={at}"], FUNCTION, SCHEMAS)


def test_a_whole_body_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    assert read_arguments([f"@{tmp_path}/a.json"], FUNCTION, SCHEMAS) == ({"x": 1}, {})
    raw = operation({"type": "object", "properties": {"data": FILE}}, **{"image/*": {"schema": {}}})
    assert read_arguments([f"@{tmp_path}/a.json"], raw, SCHEMAS) == (b'{"x": 1}', {})


def test_the_body_may_be_an_object_of_any_kind() -> None:
    assert read_arguments(["x=1", "label=2"], operation(reference("Point")), SCHEMAS) == (
        None,
        {"x": 1, "label": "2"},
    )
    numbers = operation({"type": "object", "additionalProperties": {"type": "number"}})
    assert read_arguments(["b=2"], numbers, SCHEMAS) == (None, {"b": 2})
    with pytest.raises(ValueError, match="b: 'x' is not a number"):
        read_arguments(["b=x"], numbers, SCHEMAS)
