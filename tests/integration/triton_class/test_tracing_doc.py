"""The example of docs/how-to/tracing.md runs as written, except for ports, and its spans arrive."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.ports import lasting_port
from support.real_daemon import eventually
from support.telemetry.collector import collector

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "tracing.md"
_BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n)?```python\n(.*?)```", re.DOTALL)
BLOCKS = _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))
TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_the_example_exports_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (code for skipped, code in BLOCKS if not skipped)
    port = lasting_port()
    for name, number in (("HTTP", port), ("GRPC", 0), ("METRICS", 0)):
        monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_{name}_PORT", str(number))
    # The example stops its server at once: the last spans would have two seconds, whatever the machine does.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    names: dict[str, Any] = {"__name__": "example"}
    with collector() as collected:
        code = code.replace("http://127.0.0.1:4318/v1/traces", collected.url)
        code = code.replace('"localhost"', f'"localhost:{port}"')
        exec(compile(code, str(DOCUMENT), "exec"), names)
        assert names["result"]["y"].tolist() == [4, 9]
        wanted = {
            "InferRequest", "square", "compute", "python_backend_execute", "proxy_inference_callable",
        }  # fmt: skip
        eventually(
            lambda: wanted <= collected.of_trace(TRACE).keys(),
            lambda: f"all spans came in; there are {sorted(collected.of_trace(TRACE))}",
        )
        spans = collected.of_trace(TRACE)
        # The model's span of tritonserver and the example's own have one name.
        own = next(span for span in spans["square"] if "rows" in span.attributes)
        assert own.parent == spans["proxy_inference_callable"][0].id
        assert int(own.attributes["rows"]) == 1
        assert spans["InferRequest"][0].parent == "b7ad6b7169203331"
