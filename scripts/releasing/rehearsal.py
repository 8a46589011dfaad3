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

import sys
from collections.abc import Iterator
from pathlib import Path

from releasing import building, trying
from releasing.inventory import NAME
from releasing.running import ReleaseError, run


def rehearse(former: building.Commit, coming: building.Commit, scratch: Path) -> Iterator[str]:
    """Build both releases, fill an index with them, install, upgrade and downgrade; yield what was seen.

    Raises:
        ReleaseError: a step failed.
    """
    index = scratch / "index"
    index.mkdir()
    target = trying.own_target()
    wheels = [
        building.build_commit(commit, index, scratch / name, target).wheels[0]
        for name, commit in (("former", former), ("coming", coming))
    ]
    _mirror(index, wheels)
    yield from _steps(scratch, index, former.version, coming.version)


def _mirror(index: Path, wheels: list[Path]) -> None:
    """Put what both releases need into the index, as wheels for this Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    for wheel in wheels:  # one at a time: they are of one name
        run("pip download", [*pip, "--only-binary=:all:", "--dest", str(index), str(wheel)])


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
