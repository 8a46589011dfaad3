"""Every example of docs/how-to/clients.md runs as written, except for the daemon's address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.short_waits import wait_for_one_answer
from support.models.inference import Array
from support.real_daemon import RunningDaemon

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "clients.md"
_BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n)?```python\n(.*?)```", re.DOTALL)
BLOCKS = _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))


@batch
def _linear(x: Array) -> dict[str, Array]:
    return {"y": 2 * x + 1}


@pytest.fixture(scope="module")
def served(daemon: RunningDaemon) -> RunningDaemon:
    x, y = (Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy")
    config = ModelConfig(max_batch_size=16)
    daemon.client.register(_linear, "linear", [x], [y], config=config, progress=False)
    return daemon


def test_the_examples_run(
    served: RunningDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTRITON_DAEMON_RUNTIME_DIR", served.config.runtime_dir)
    port = served.http.rpartition(":")[2]
    names: dict[str, Any] = {}
    run = [code.replace(":8000", f":{port}") for skipped, code in BLOCKS if not skipped]
    assert len(run) >= 8
    for code in run:
        with monkeypatch.context() as patch:
            if "no-such-model" in code:
                wait_for_one_answer(patch)
            patient = code.replace("init_timeout_s=1)", "init_timeout_s=60)")
            exec(compile(patient, str(DOCUMENT), "exec"), names)
    assert names["batch"]["y"].tolist() == [[3, 5, 7]] * 2
    assert [result[0] for result in names["results"]] == [2 * one + 1 for one in range(100)]
    said = capsys.readouterr().out
    assert "[[3. 5. 7.]]" in said
    assert "(100, 'linear')" in said
    assert "Waiting for model no-such-model/<latest> to be ready timed out. After" in said
    assert "data-type is 'FP64', but model 'linear' expects 'FP32'" in said
