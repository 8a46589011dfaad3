"""A model repository in S3: a real S3 API (moto's server) on this machine.

moto brings 300 MB of packages, so CI does not install it: PYTRITON_TEST_MOTO is the path of its `moto_server`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.models import repositories
from support.ports import lasting_port
from support.real_daemon import eventually

from pytriton.exceptions import ModelNotFoundError
from pytriton.runner import Runner

SECRET = "a-key-that-nobody-may-see"


def put(url: str, content: bytes = b"") -> None:
    headers = {"Content-Type": "application/octet-stream"}  # else it is taken for a form
    request = urllib.request.Request(url, content, headers, method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    command = os.environ.get("PYTRITON_TEST_MOTO") or shutil.which("moto_server")
    if command is None:
        pytest.skip("moto is not installed, and $PYTRITON_TEST_MOTO names no moto_server")
    address = f"http://127.0.0.1:{lasting_port()}"
    with open(tmp_path / "moto.log", "wb") as log:
        port = address.rpartition(":")[2]
        process = subprocess.Popen([command, "-H", "127.0.0.1", "-p", port], stdout=log, stderr=log)

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "moto.log").read_text()
        try:
            put(f"{address}/models")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    try:
        eventually(answers, "moto's server answers", 60)
        yield address
    finally:
        process.terminate()
        process.wait()


def test_models_are_loaded_from_a_bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    put(f"{s3}/models/prefix/native/config.pbtxt", repositories.PYTHON_CONFIG.encode())
    put(f"{s3}/models/prefix/native/1/model.py", repositories.PYTHON_MODEL.encode())
    x = np.ones((1, 4), np.float32)
    with Runner("cloud", f"s3://{s3}/models/prefix") as runner:
        assert runner.native.run(x).as_numpy("y")[0, 0] == 5
        runner.sync.unload_model("native")
        with pytest.raises(ModelNotFoundError, match="'native' is unloaded"):
            runner.native.run(x)
        runner.sync.load_model("native")
        assert runner.native.run(x).as_numpy("y")[0, 0] == 5
        folder = Path(runner.link().client.status().runtime_dir)
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
