"""Rehearse a release: install it from a local index, upgrade, and downgrade, with a persistent state directory.

```
index (a folder)      environment            state directory
  former  ──install──▶  daemon serves    ──▶  a model is registered
  coming  ──upgrade──▶  daemon serves    ◀──  the model is restored
  former  ─downgrade─▶  daemon serves    ◀──  the model is restored
  coming  ──sign with a temporary key──▶ verify
          ──attest with a local Sigstore─▶ verify
```

The index is a folder with both releases and their dependencies, which pip uses with --no-index.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from release import attachments, attestations, builder, install_check, signatures
from release.tool_runner import ReleaseError, run


def rehearse(former: builder.Commit, coming: builder.Commit, scratch: Path) -> Iterator[str]:
    """Build both releases; install, upgrade and downgrade from an index; sign and attest one; yield a line about each step.

    Raises:
        ReleaseError: a step failed
    """
    index = scratch / "index"
    index.mkdir()
    target = install_check.own_target()
    built = [
        builder.build_commit(commit, index, scratch / name, target)
        for name, commit in (("former", former), ("coming", coming))
    ]
    _mirror(index, [one.wheels[0] for one in built])
    yield from _steps(scratch, index, former.version, coming.version)
    yield from _sign(scratch, built[1], coming)
    yield from attestations.rehearse(built[1].wheels[0], scratch)


def _sign(scratch: Path, built: builder.Built, commit: builder.Commit) -> Iterator[str]:
    """Sign this machine's wheel with a temporary key, and verify the signature."""
    out = scratch / "release"
    out.mkdir()
    sdist, *wheels = (Path(shutil.copy2(one, out)) for one in built.files)
    files = builder.Built(sdist, tuple(wheels))
    attachments.write(commit, files, out, scratch / "coming" / "source", scratch)
    key, signers = signatures.make_key(scratch)
    signatures.sign(out / signatures.SUMS, key)
    yield from signatures.check(out, signers)


def _mirror(index: Path, wheels: list[Path]) -> None:
    """Download the dependencies of both releases into the index, as wheels for this Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    for wheel in wheels:  # separately, because they have the same name
        run("pip download", [*pip, "--only-binary=:all:", "--dest", str(index), str(wheel)])


def _steps(scratch: Path, index: Path, former: str, coming: str) -> Iterator[str]:
    cache = scratch / "cache"
    install_check.fill_cache(cache)
    environment = install_check.make_environment(
        Path(sys.executable), scratch / "environment", cache
    )
    only = ["--no-index", "--find-links", str(index)]
    for what, version, task in (
        ("installed", former, "register"),
        ("upgraded to", coming, "restore"),
        ("downgraded to", former, "restore"),
    ):
        install_check.install(environment, *only, f"pytriton-daemon=={version}")
        report = install_check.serve(environment, scratch / "served", task)
        if report["version"] != version:
            raise ReleaseError(
                f"{what} {version}, but the daemon reports version {report['version']}"
            )
        outcome = "a model was registered" if task == "register" else "the model was restored"
        yield f"{what} {version}: {outcome} and answers over HTTP and gRPC"
