"""A model in a bucket for which tritonserver has no backend: requests get the reason and the fix."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Content
from pytriton.dispatcher.repository.model_loader import cloud_failure
from pytriton.dispatcher.repository.repository_models import RepositoryModels


class _Server:
    """A tritonserver that sees one model in its bucket, and has no backend for it."""

    ready = True

    async def repository_states(self) -> dict[str, str]:
        return {"classifier": ""}

    async def load(self, name: str, config: Any) -> None:
        raise RemoteFailure(ErrorKind.LOAD_FAILED, "unable to find backend library 'onnxruntime'\n")


class _Python:
    async def ensure_if_possible(self, model: str) -> None:
        pass


class _Registry:
    """A registry without models."""

    restoring = Restorer(Content([], []))
    served = ()


def test_reason_names_what_a_bucket_can_hold(tmp_path: Path) -> None:
    backends, models = tmp_path / "backends", tmp_path / "models"
    for folder in (
        models,
        *(backends / name for name in ("python", "pytriton", "pytriton_native")),
    ):
        folder.mkdir(parents=True)
    parts: dict[str, Any] = {"python": _Python(), "server": _Server(), "registry": _Registry()}
    config = DaemonConfig(runtime_dir=str(tmp_path), model_repository=("s3://bucket/models",))
    served = RepositoryModels(
        config, models=models, backends=backends, library=tmp_path / "lib", **parts
    )

    async def load() -> None:
        with pytest.raises(RemoteFailure) as raised:
            await served.load("classifier")
        assert raised.value.kind is ErrorKind.LOAD_FAILED
        (one,) = await served.index()
        for said in (raised.value.text, one.reason):
            assert said.startswith(
                "unable to find backend library 'onnxruntime'\nModels in cloud storage"
            )
            assert "it has their backend (available: python)" in said
            assert "Workers also serve ONNX, " in said
            assert "--model-repository FOLDER" in said

    asyncio.run(load())


def test_available_backends_exclude_our_own(tmp_path: Path) -> None:
    """With the kind and traceback of tritonserver's error, and also if it has no backend at all."""
    said = RemoteFailure(ErrorKind.UNAVAILABLE, "it said no\n", "its traceback")
    bare = cloud_failure(said, tmp_path)
    for name in ("openvino", "python", "pytriton", "pytriton_native"):
        (tmp_path / name).mkdir()
    failure = cloud_failure(said, tmp_path)
    assert (failure.kind, failure.traceback) == (said.kind, said.traceback)
    assert failure.text.startswith("it said no\nModels in cloud storage are served by tritonserver")
    assert "(available: openvino, python)" in failure.text
    assert "(available: none)" in bare.text
