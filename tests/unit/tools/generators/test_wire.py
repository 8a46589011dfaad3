"""Check that the shapes of messages do not change without PROTOCOL."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Optional, Union

import msgspec
import pytest
from generators import wire
from generators.__main__ import main

from pytriton._protocol.messages.base import PROTOCOL

ROOT = Path(__file__).parents[4]


def test_all_kinds_of_messages_are_included() -> None:
    names = wire.shapes()
    wanted = ["client.Register", "model_spec.ModelSpec", "worker.LoadModel", "proxy.Attached"]
    assert {*wanted, "lane_messages.Batch", "lane_messages.TensorRef", "call_messages.Call"} <= {
        *names
    }


KNOWN = wire.Wire(12, ["before"], {"a.A": "1", "b.B": "2"})


@pytest.mark.parametrize(
    ("protocol", "found", "note", "written"),
    [
        pytest.param(12, {"b.B": "2", "a.A": "1"}, None, KNOWN, id="nothing has changed"),
        pytest.param(
            13, {"a.A": "1"}, None, wire.Wire(13, [], {"a.A": "1"}), id="with another number"
        ),
        pytest.param(
            13, {"a.A": "1"}, "x", wire.Wire(13, [], {"a.A": "1"}), id="which needs no note"
        ),
        pytest.param(
            12, {"a.A": "3"}, "x", wire.Wire(12, ["before", "x"], {"a.A": "3"}), id="with a note"
        ),
        pytest.param(12, KNOWN.shapes, "x", KNOWN, id="a note about nothing"),
    ],
)
def test_shapes_are_written(
    protocol: int, found: dict[str, str], note: Optional[str], written: wire.Wire
) -> None:
    assert wire.update(KNOWN, protocol, found, note) == written


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"a.A": "9", "b.B": "2"}, r"protocol 12: a\.A\. Raise"),
        ({"a.A": "1"}, r"protocol 12: b\.B\. Raise"),
        ({**KNOWN.shapes, "c.C": "3"}, r"protocol 12: c\.C\. Raise"),
    ],
    ids=["another shape", "one is gone", "one is new"],
)
def test_an_unrecorded_change_is_refused(found: dict[str, str], named: str) -> None:
    with pytest.raises(wire.ChangedWire, match=named):
        wire.update(KNOWN, 12, found)


def test_the_number_must_not_decrease() -> None:
    with pytest.raises(wire.ChangedWire, match="must not decrease"):
        wire.update(KNOWN, 11, KNOWN.shapes)


def test_generate_reports_that_it_wrote_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(committed: Optional[str], note: Optional[str] = None) -> str:
        raise wire.ChangedWire("messages have another shape")

    monkeypatch.setattr(wire, "text", changed)
    monkeypatch.setattr("sys.argv", ["generate", "--root", str(ROOT)])
    assert main() == 1
    assert capsys.readouterr().err == (
        "scripts/generate wrote nothing: messages have another shape\n"
    )


def test_the_number_is_raised_in_its_module(tmp_path: Path) -> None:
    module = tmp_path / "pytriton" / "_protocol" / "messages" / "base.py"
    module.parent.mkdir(parents=True)
    module.write_text(f"#: The number.\nPROTOCOL = {PROTOCOL}\n")
    wire.raise_protocol(tmp_path)
    assert module.read_text() == f"#: The number.\nPROTOCOL = {PROTOCOL + 1}\n"


class Part(msgspec.Struct):
    x: int


def digests(fields: list[Any], **config: Any) -> dict[str, str]:
    one = msgspec.defstruct("One", fields, **{"tag": True, **config})
    other = msgspec.defstruct("Other", [], tag=True)
    found = wire.shapes(Union[one, other])
    return {name.rpartition(".")[2]: digest for name, digest in found.items()}


PLAIN = digests([("a", int), ("b", str)])


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ([("a", int)], {}),
        ([("a", int), ("b", str), ("c", int)], {}),
        ([("a", float), ("b", str)], {}),
        ([("a", Optional[int]), ("b", str)], {}),
        ([("a", Literal["x"]), ("b", str)], {}),
        ([("a", int), ("b", str, "")], {}),
        ([("a", int), ("b", str)], {"array_like": True}),
        ([("a", int), ("b", str)], {"tag": "another"}),
        ([("a", int), ("b", str)], {"rename": "upper"}),
        ([("a", int), ("b", str)], {"forbid_unknown_fields": True}),
    ],
    ids=str,
)
def test_changes_of_a_shape_are_detected(fields: list[Any], config: dict[str, Any]) -> None:
    assert digests(fields, **config)["One"] != PLAIN["One"]


def test_irrelevant_changes_keep_the_shape() -> None:
    """The order of fields with names on the wire is irrelevant."""
    assert digests([("b", str), ("a", int)]) == PLAIN
    ordered = [
        digests(fields, array_like=True)["One"]
        for fields in ([("a", int), ("b", int)], [("b", int), ("a", int)])
    ]
    assert ordered[0] != ordered[1]


@pytest.mark.parametrize(
    "kind",
    [Part, list[Part], dict[str, Part], Optional[Part], tuple[Part, int], list[Optional[Part]]],
)
def test_parts_are_followed(kind: Any) -> None:
    assert "Part" in digests([("a", kind)])
