"""The code of docs/how-to/model-configuration.md runs, and does what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor, to_triton_config
from pytriton.proxy.types import Request

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "model-configuration.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the document's code defines, run as one module."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    defined: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), defined)
    return defined


def test_its_configurations_are_tritons(names: dict[str, Any]) -> None:
    found = [name for name, value in names.items() if isinstance(value, ModelConfig)]
    assert found == ["config", "sequences", "limited", "warm"]
    inputs, outputs = [Tensor((3,), np.float32, "x")], [Tensor((1,), np.float32, "y")]
    for name in found:
        assert to_triton_config("m", inputs, outputs, names[name])["max_batch_size"] >= 4


def test_its_callables_answer(names: dict[str, Any]) -> None:
    sums = names["Sums"]()
    for start, expected in ((True, 1), (False, 2), (True, 1)):
        sent = {"x": np.ones((1, 1)), "id": np.array([[7]]), "start": np.array([[start]])}
        assert sums([Request(sent)])[0]["sum"].item() == expected
    text = np.array([[b"hallo"]], object)
    requests = [Request({"text": text}, {"lang": lang}) for lang in (b"de", b"fr")]
    answers = names["translate"](requests)
    assert [answer["language"].item() for answer in answers] == [b"de", b"fr"]
