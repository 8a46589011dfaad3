"""Ensembles that trigger faults of Triton's core are refused or reported; similar ones are served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.models import repositories
from support.models.inference import infer_once
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

_X = np.ones((1, 4), np.float32)
_LIMITED = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
_DECOUPLED = "model_transaction_policy { decoupled: true }"
_SLOW = repositories.PYTHON_MODEL.replace(
    "if any(x.flat[0] == -1 for x in tensors)", "if True"
).replace("time.sleep(3.5)", "time.sleep(0.1)")


def _parallel(*models: str) -> str:
    """Return the configuration of an ensemble whose steps all get its input."""
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "x" }} '
        f'output_map {{ key: "y" value: "{model}" }} }}'
        for model in models
    )
    outputs = ", ".join(
        f'{{ name: "{model}" data_type: TYPE_FP32 dims: [ 4 ] }}' for model in models
    )
    return (
        'platform: "ensemble" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] '
        f"output [ {outputs} ] ensemble_scheduling {{ step [ {steps} ] }}"
    )


@pytest.mark.parametrize("frontend", ["native", "triton"])
def test_ensembles_with_limited_queues_and_decoupled_steps(tmp_path: Path, frontend: str) -> None:
    for name, code, extra in (
        ("plain", repositories.PYTHON_MODEL, ""),
        ("second", repositories.PYTHON_MODEL, ""),
        ("limited", _SLOW, _LIMITED),
        ("decoupled", repositories.PYTHON_MODEL, _DECOUPLED),
    ):
        config = repositories.PYTHON_CONFIG + extra
        repositories.add(tmp_path, name, {"1/model.py": code.encode()}, config)
    repositories.add(tmp_path, "forked", {"1/.keep": b""}, _parallel("limited", "plain"))
    repositories.add(tmp_path, "unlimited", {"1/.keep": b""}, _parallel("plain", "second"))
    repositories.add_ensemble(tmp_path, "chained", ["plain", "limited"])
    repositories.add_ensemble(tmp_path, "streamed", ["decoupled", "plain"])
    repositories.add_ensemble(tmp_path, "stuck", ["decoupled", "limited"])
    with RunningDaemon.start(model_repository=(str(tmp_path),), frontend=frontend) as daemon:

        def states() -> dict[str, str]:
            found = {one.name: one.state for one in daemon.client.repository()}
            return found if "loading" not in found.values() else {}

        found = eventually(states, "all models were tried")
        assert {name for name, state in found.items() if state != "ready"} == {"forked", "stuck"}
        reasons = {one.name: one.error or "" for one in daemon.client.status().models}
        assert "step limited limits its queue (max_queue_size)" in reasons["forked"]
        assert "in parallel with step plain" in reasons["forked"]
        assert "after step decoupled, which is decoupled" in reasons["stuck"]
        warnings = [line for line in daemon.said().splitlines() if "unlimited memory" in line]
        assert [name for name in found if any(f'"{name}"' in one for one in warnings)] == [
            "streamed"
        ]

        def ask(_: int) -> str:
            try:
                infer_once(daemon, "chained", {"x": _X})
                return ""
            except InferenceServerException as error:
                return str(error)

        with ThreadPoolExecutor(16) as pool:
            answers = set(pool.map(ask, range(48)))
        assert "" in answers
        assert any("maximum queue size" in one for one in answers)  # and none waits forever
