"""tritonserver's model repository: which names belong to models that it serves itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton.dispatcher.triton import own_repository


def test_a_linked_folder_is_served_by_tritonserver_itself(tmp_path: Path) -> None:
    models, folder = tmp_path / "models", tmp_path / "mine"
    models.mkdir()
    folder.mkdir()
    own_repository.link(models, "mine", folder)
    assert own_repository.is_linked(models, "mine")
    own_repository.unlink(models, "mine")
    assert not own_repository.is_linked(models, "mine")


@pytest.mark.parametrize("name", ["a" * 300, "zero\0byte", "", "no/such"])
def test_what_cannot_be_a_file_s_name_is_none(tmp_path: Path, name: str) -> None:
    """Whoever asks for such a model is told that there is none (found by scripts/fuzz: File name too long)."""
    assert not own_repository.is_linked(tmp_path, name)
