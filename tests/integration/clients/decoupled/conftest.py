"""A tritonserver with a model that counts, and the files through which tests control and observe that model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models.decoupled_models import counting_triton
from support.plain_triton import PlainTriton


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="session")
def triton(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainTriton]:
    with counting_triton(tmp_path_factory.mktemp("triton"), files) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(files: Path) -> Iterator[None]:
    yield
    for file in files.iterdir():
        file.unlink()
