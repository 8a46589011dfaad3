"""Models whose files came with the request to load them: written down, as a repository of one model each.

The names are those of Triton's model repository extension: "file:1/model.onnx" is `model.onnx` of version 1.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

_PREFIX = "file:"


class BadFileName(ValueError):
    """A file's name is not allowed in a model's folder."""


class MaterializedFiles:
    """The folder of such files, as SERIAL/MODEL/VERSION/FILE.

    Args:
        folder: where they lie
        is_adopted: a former version of the daemon serves what lies there; else it starts out empty
    """

    def __init__(self, folder: Path, *, is_adopted: bool = False) -> None:
        self._folder = folder
        last = 0
        if is_adopted and folder.exists():
            last = max((int(one.name) for one in folder.iterdir()), default=0)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self._serial = itertools.count(last + 1)

    def write(self, model: str, files: Mapping[str, bytes]) -> Path:
        """Write a model's files; return the repository that has this model only.

        Raises:
            BadFileName: see the class.
            OSError: they cannot be written.
        """
        inside = {relative_path(name): content for name, content in files.items()}
        if "/" in model or model in ("", ".", ".."):
            raise BadFileName(f"{model!r} is no name for a model with files of its own")
        repository = self._folder / str(next(self._serial))
        try:
            for path, content in inside.items():
                place = repository / model / path
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                place.write_bytes(content)
        except OSError:
            self.remove(repository)
            raise
        return repository

    def remove(self, repository: Path | None) -> None:
        """Remove what `write` has returned, or nothing."""
        if repository is not None:
            shutil.rmtree(repository, ignore_errors=True)


def relative_path(name: str) -> PurePosixPath:
    """Return the path in a model's folder that a file's name stands for.

    Raises:
        BadFileName: it lacks its "file:", or leads out of the folder.

    Example:
        >>> str(relative_path("file:1/model.py"))
        '1/model.py'
    """
    path = PurePosixPath(name[len(_PREFIX) :])
    if not name.startswith(_PREFIX) or not path.name:
        raise BadFileName(f'{name!r} is no name of a file: write "file:1/model.py"')
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadFileName(f"{name!r} leads out of the model's folder")
    return path
