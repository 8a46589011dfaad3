"""Rehearses a release: a local index, an installation from it, an upgrade, and the way back, with the state kept.

```
index (a folder)      environment            state directory
  former  ──install──▶  daemon serves    ──▶  a model is registered
  coming  ──upgrade──▶  daemon serves    ◀──  the model comes back
  former  ─downgrade─▶  daemon serves    ◀──  the model comes back
```

The index is a folder that pip takes with --no-index: it holds both releases and everything that they need, so what is
installed is what is in it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from releasing import building, trying
from releasing.inventory import NAME
from releasing.running import ReleaseError, run


@dataclass(frozen=True)
class Release:
    """A release in the local index."""

    version: str
    built: building.Built


def rehearse(
    root: Path, scratch: Path, coming: Release, former_ref: str, former: str
) -> Iterator[str]:
    """Build the former release, fill an index with both, install, upgrade and downgrade; yield what was seen.

    Args:
        root: the checkout
        scratch: an empty folder
        coming: the release that is rehearsed
        former_ref: the commit or tag of the one before it
        former: the version that it gets

    Raises:
        ReleaseError: a step failed.
    """
    index = scratch / "index"
    index.mkdir()
    source = scratch / "former"
    epoch = building.commit_time(root, former_ref)
    building.export(root, source, former, former_ref)
    (scratch / "build").mkdir()
    built = building.build(source, index, scratch / "build", epoch, trying.own_target())
    for file in coming.built.files:
        shutil.copy(file, index)
    _mirror(index, [built.wheel_for(trying.machine()), coming.built.wheel_for(trying.machine())])
    yield from _steps(scratch, index, former, coming.version)


def _mirror(index: Path, wheels: list[Path]) -> None:
    """Put what both releases need into the index, as wheels for this Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    run("pip download", [*pip, "--only-binary=:all:", "--dest", str(index), *map(str, wheels[:1])])
    run("pip download", [*pip, "--only-binary=:all:", "--dest", str(index), *map(str, wheels[1:])])


def _steps(scratch: Path, index: Path, former: str, coming: str) -> Iterator[str]:
    cache = scratch / "cache"
    trying.fill_cache(cache)
    environment = trying.make_environment(Path(sys.executable), scratch / "environment", cache)
    only = ["--no-index", "--find-links", str(index)]
    for what, version, task in (
        ("installed", former, "register"),
        ("upgraded to", coming, "restore"),
        ("downgraded to", former, "restore"),
    ):
        trying.install(environment, *only, f"{NAME}=={version}")
        report = trying.serve(environment, scratch / "served", task)
        if report["version"] != version:
            raise ReleaseError(
                f"{what} {version}, but the daemon says that it is {report['version']}"
            )
        came = "a model is registered" if task == "register" else "the model came back"
        yield f"{what} {version}: {came} and answers over HTTP and gRPC"
