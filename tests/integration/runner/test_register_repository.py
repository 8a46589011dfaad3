"""Clients register whole repositories of Python models, and several versions of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.forks.prefork import command
from support.models import repositories
from support.models.inference import infer_once
from support.real_daemon import RunningDaemon

from pytriton.exceptions import (
    ModelExistsError,
    PyTritonBadParameterError,
    RegistrationError,
)

X = np.ones((1, 4), np.float32)


def ask(daemon: RunningDaemon, model: str, version: int | None = None) -> float:
    version_of = {} if version is None else {"model_version": str(version)}
    return float(infer_once(daemon, model, {"x": X}, **version_of)["y"][0, 0])


def names(daemon: RunningDaemon) -> set[str]:
    return {model.name for model in daemon.client.models()}


def test_each_served_version_has_its_own_workers(daemon: RunningDaemon, tmp_path: Path) -> None:
    policy = "version_policy { latest { num_versions: 2 } }"
    folder = repositories.add_multiplier(tmp_path, "several", {1: 1, 2: 2, 4: 4}, policy)
    model = daemon.client.register_model(folder, standby_workers=1)
    assert (model.version, model.info().versions) == (4, [2, 4])
    assert [ask(daemon, "several", version) for version in (2, 4)] == [2, 4]
    instances = [(one.index, one.version, one.standby) for one in model.instances]
    assert instances == [(0, 2, False), (0, 4, False), (1, 2, True), (1, 4, True)]
    model.scale(2)
    instances = [(one.index, one.version, one.standby) for one in model.instances]
    assert instances[:4] == [(0, 2, False), (0, 4, False), (1, 2, False), (1, 4, False)]
    assert len({one.pid for one in model.instances}) == 6
    assert [ask(daemon, "several", version) for version in (2, 4)] == [2, 4]
    one = daemon.client.register_model(folder, version=1, replace=True)
    assert (one.version, one.info().versions) == (1, [])
    assert ask(daemon, "several") == 1
    one.rollback()
    assert [ask(daemon, "several", version) for version in (2, 4)] == [2, 4]


def test_a_repository_is_registered_all_or_nothing(daemon: RunningDaemon, tmp_path: Path) -> None:
    client = daemon.client
    for factor, name in enumerate("abc", start=2):
        repositories.add_multiplier(tmp_path, name, {1: factor})
    (tmp_path / "docs").mkdir()  # no model
    (tmp_path / "c" / "1" / "factor.py").write_text("raise ValueError('no factor')")
    with pytest.raises(RegistrationError, match="no factor") as failed:
        client.register_repository(tmp_path)
    assert failed.value.model_name == "c"
    story = failed.value.message
    assert "model c was not registered" in story
    assert "b was unregistered; a was unregistered" in story
    assert names(daemon).isdisjoint("abc")

    (tmp_path / "c" / "1" / "factor.py").write_text("FACTOR = 4\n")
    models = client.register_model(tmp_path)
    assert [model.name for model in models] == ["a", "b", "c"]
    assert [ask(daemon, name) for name in "abc"] == [2, 3, 4]
    with pytest.raises(
        ModelExistsError, match=r"model a was not registered.*\nNot registered: b, c"
    ):
        client.register_model(tmp_path)

    (tmp_path / "a" / "1" / "factor.py").write_text("FACTOR = 20\n")
    (tmp_path / "b" / "1" / "factor.py").write_text("raise ValueError('no factor')")
    with pytest.raises(RegistrationError, match=r"Registered before it: a was rolled back"):
        client.register_repository(tmp_path, replace=True)
    assert names(daemon).issuperset("abc")


def test_a_folder_that_is_not_a_python_model_repository_is_refused(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    before = names(daemon)
    repositories.add_multiplier(tmp_path, "first", {1: 1})
    repositories.add_affine(tmp_path, "second", {1: 1.0})
    repositories.add_ensemble(tmp_path, "third", ["first", "second"])
    with pytest.raises(PyTritonBadParameterError) as refused:
        daemon.client.register_model(tmp_path)
    text = str(refused.value)
    assert "second (onnxruntime), third (ensemble)" in text
    assert f"--model-repository {tmp_path}" in text
    assert f"each of these folders: {tmp_path / 'first'}" in text
    with pytest.raises(
        PyTritonBadParameterError, match="model_name can be set for a single model only"
    ):
        daemon.client.register_model(tmp_path, "name")
    with pytest.raises(PyTritonBadParameterError, match="is not a model repository"):
        daemon.client.register_repository(tmp_path / "first")
    repositories.add(tmp_path / "wrong", "misspelt", {"1/model.py": b""}, "max_batch_siz: 1")
    with pytest.raises(PyTritonBadParameterError, match="max_batch_siz"):
        daemon.client.register_model(tmp_path / "wrong")
    assert names(daemon) == before


def test_the_command_line_registers_a_repository(daemon: RunningDaemon, tmp_path: Path) -> None:
    repositories.add_multiplier(tmp_path, "only", {1: 6})
    place = ("--runtime-dir", daemon.config.runtime_dir)
    done = command("register", "--model-dir", str(tmp_path), *place)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["only"]
    assert ask(daemon, "only") == 6
