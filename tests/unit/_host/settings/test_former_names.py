"""Settings that were renamed are read by their former names, too, wherever settings are said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton._host.settings import start_flags
from pytriton._host.settings.declarations import env_name, former_names, options, present_name
from pytriton._host.settings.sources import load
from pytriton._protocol.files.rundir import RuntimeDir


def test_no_name_means_two_settings() -> None:
    assert former_names() == ["native_model"]
    assert not set(former_names()) & set(options())
    assert present_name("native_model") == "python_backend_model"
    assert present_name("http_port") == "http_port"


@pytest.mark.parametrize("name", ["native_model", "python_backend_model"])
def test_a_setting_by_either_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'{name} = ["a"]\n')
    loaded = load({}, {}, tmp_path, str(file))
    assert loaded.config.python_backend_model == ("a",)
    assert loaded.sources["python_backend_model"] == f"file {file}"
    loaded = load({}, {env_name(name): "b"}, tmp_path, str(file))
    assert loaded.config.python_backend_model == ("b",)
    assert loaded.sources["python_backend_model"] == f"environment {env_name(name)}"


def test_the_present_name_wins_over_the_former_one(tmp_path: Path) -> None:
    variables = {env_name("native_model"): "old", env_name("python_backend_model"): "new"}
    assert load({}, variables, tmp_path).config.python_backend_model == ("new",)


def test_flags_of_an_earlier_version_are_kept(tmp_path: Path) -> None:
    rundir = RuntimeDir(tmp_path)
    content = {"flags": {"native_model": ["m"], "gone": 1}, "config": None, "cwd": "/"}
    start_flags.path(rundir).write_text(json.dumps(content))
    kept = start_flags.read(rundir)
    assert kept is not None
    assert kept.flags == {"python_backend_model": ["m"]}


@pytest.mark.programs
@pytest.mark.parametrize("flag", ["--native-model", "--python-backend-model"])
def test_the_flag_by_either_name(flag: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytriton._cli", "start", "--print-config", flag, "m"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'python_backend_model = ["m"]' in done.stdout
