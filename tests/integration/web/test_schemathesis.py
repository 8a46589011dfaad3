"""The twelve endpoints against their OpenAPI document: requests that it permits and others, as schemathesis makes them."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.real_daemon import FRONT, RunningDaemon

pytest.importorskip("pydantic")
pytest.importorskip("PIL.Image")
from support.web_services import typed_functions

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")

_TIMEOUT_S = 280
#: All checks, except where a schema cannot say what is accepted. `image_size`: no schema says which base64 is an image.
#: `churn`: pydantic takes `false` and "1" for a number, as it does for FastAPI. `reverse` and `size`: any text is a field of
#: a form.
_CHECKS = """
[[operations]]
include-path = "/image_size"
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.enabled = false

[[operations]]
include-path-regex = "^/(churn|reverse|size)$"
checks.negative_data_rejection.enabled = false
"""


@pytest.fixture(scope="module", autouse=True)
def models(daemon: RunningDaemon) -> None:
    for function in typed_functions.ALL:
        daemon.client.register(function)


def test_the_document_is_valid_openapi(daemon: RunningDaemon) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    client = http.client.HTTPConnection(daemon.http, timeout=60)
    client.request("GET", "/openapi.json")
    document = json.load(client.getresponse())
    client.close()
    assert document["openapi"].startswith("3.1.")
    assert len(document["paths"]) == len(typed_functions.ALL)
    validator.OpenAPIV31SpecValidator(document).validate()


@pytest.mark.programs
@pytest.mark.timeout(_TIMEOUT_S + 20)
def test_responses_are_as_described(daemon: RunningDaemon, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(_CHECKS)
    command = [
        sys.executable, "-m", "schemathesis.cli", f"--config-file={config}", "run",
        f"http://{daemon.http}/openapi.json", "--phases=coverage,fuzzing",
        "--max-examples=40", "--seed=1", "--no-color", "--warnings=off",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {len(typed_functions.ALL)}" in done.stdout
