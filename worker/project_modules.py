"""Imports the registrant's own modules as they were at registration, even if their files have changed or are gone.

An unchanged file is imported as usual, with its cached bytecode. Tracebacks show the source lines of functions that
were pickled by value as they were at registration, too.
"""

from __future__ import annotations

import io
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Optional

from pytriton._protocol.payload import Lines, Source


def use(sources: Sequence[Source]) -> None:
    """Make imports of these modules use the registered source."""
    if sources:
        sys.meta_path.insert(0, _Registered({one.name: one for one in sources}))


def show(lines: Sequence[Lines]) -> None:
    """Make tracebacks and `inspect` show these source lines, whatever the files contain now."""
    for file in {one.file for one in lines}:
        shown = list(linecache.getlines(file))
        for one in lines:
            if one.file == file:
                start, own = one.first - 1, _lines(one.text)
                shown += ["\n"] * (start - len(shown))
                shown[start : start + len(own)] = own
        _show(file, shown)


def _lines(text: str) -> list[str]:
    """Split a program into lines. Unlike `splitlines`, do not split at form feeds."""
    return io.StringIO(text).readlines()


def _show(file: str, lines: list[str]) -> None:
    # Without a modification time, linecache never compares the entry with the file.
    known: Any = (sum(map(len, lines)), None, lines, file)
    linecache.cache[file] = known


class _Registered:
    """Import finder for the registered modules.

    Not a subclass of `importlib.abc.MetaPathFinder`, because importing that module takes 6 ms.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        #: Namespace packages that contain registered modules: package name -> folder.
        self._spaces = {
            package: folder
            for one in sources.values()
            for package, folder in _packages(one)
            if package not in sources
        }

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        source = self._sources.get(name)
        if source is None and name not in self._spaces:
            return None
        there = PathFinder.find_spec(name, path)
        if source is None:
            return None if there is not None else _space(name, self._spaces[name])
        if there is not None and there.has_location:
            if not _is_same(_root(name, str(there.origin)), _root(name, source.file)):
                return (
                    None  # another module of this name, such as one in a working directory of Ray
                )
        elif path is not None and dict(_packages(source))[name.rpartition(".")[0]] not in path:
            return None  # its package is another one of this name
        loader: SourceFileLoader = SourceFileLoader(name, source.file)
        if _content(source.file) != source.text:
            loader = _ProjectLoader(name, source)
        return spec_from_file_location(name, source.file, loader=loader)


class _ProjectLoader(SourceFileLoader):
    """Loader for a module whose file no longer contains the registered source."""

    def __init__(self, name: str, source: Source) -> None:
        super().__init__(name, source.file)
        self._text = source.text

    def get_code(self, fullname: str) -> CodeType:
        """Compile the registered source. The cached bytecode was compiled from another source."""
        code: CodeType = self.source_to_code(self._text, self.path)
        return code

    def get_data(self, path: str) -> bytes:
        """For the module's own path, return the registered source; for any other path, the content of the file."""
        return self._text if path == self.path else super().get_data(path)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and make tracebacks and `inspect` show the registered source."""
        _show(self.path, _lines(self.get_source(module.__name__) or ""))
        super().exec_module(module)


def _is_same(folder: Path, other: Path) -> bool:
    return folder == other or os.path.realpath(folder) == os.path.realpath(other)


def _root(name: str, file: str) -> Path:
    """Return the folder on the search path in which a module was found."""
    path = Path(os.path.abspath(file))
    return path.parents[name.count(".") + (path.name == "__init__.py")]


def _packages(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the name and folder of each package that contains a module."""
    folder = _root(source.name, source.file)
    parts = source.name.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count]), str(folder.joinpath(*parts[:count]))


def _content(file: str) -> Optional[bytes]:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return None


def _space(name: str, folder: str) -> ModuleSpec:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [folder]
    return spec
