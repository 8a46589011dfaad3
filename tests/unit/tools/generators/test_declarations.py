"""Check the tables with which the compiled proxy validates messages."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Union

import msgspec
import pytest
from generators import declarations

ROOT = Path(__file__).parents[4]


def test_the_committed_source_is_up_to_date() -> None:
    assert (ROOT / declarations.PATH).read_text() == declarations.source(), "run scripts/generate"


def test_parts_are_declared_before_their_message() -> None:
    source = declarations.source()
    assert '{"requests", true, {.kind = SHAPE_LIST, .item = &Batch_requests_item}},' in source
    assert (
        '{"trace", false, {.kind = SHAPE_STRUCT, .optional = true, .declared = &BatchTrace}},'
        in source
    )
    assert source.count("static const Declared TensorRef = {NULL, false, 6, ") == 1
    assert source.index("Declared TensorRef =") < source.index(
        'Declared Batch = {"Batch", false, 7, '
    )


@pytest.mark.parametrize(
    "kind", [bytes, Union[int, float], Optional[Union[str, bool]], dict[str, int]]
)
def test_unsupported_types_are_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    struct = msgspec.defstruct("Strange", [("field", kind)], array_like=True, tag=True)
    monkeypatch.setitem(declarations.SETS, "lane_messages", (struct,))
    with pytest.raises(declarations.UnknownShape, match="Strange_field"):
        declarations.source()
