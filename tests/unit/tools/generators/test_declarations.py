"""Check the tables with which the compiled proxy validates messages."""

from __future__ import annotations

from typing import Optional, Union

import msgspec
import pytest
from generators import declarations


@pytest.mark.parametrize(
    "kind", [bytes, Union[int, float], Optional[Union[str, bool]], dict[str, int]]
)
def test_unsupported_types_are_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    struct = msgspec.defstruct("Strange", [("field", kind)], array_like=True, tag=True)
    monkeypatch.setitem(declarations.SETS, "lane_messages", (struct,))
    with pytest.raises(declarations.UnknownShape, match="Strange_field"):
        declarations.source()
