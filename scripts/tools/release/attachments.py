"""Write the files that accompany a release: SBOM, provenance, release notes and checksums."""

from __future__ import annotations

import json
import platform
import re
import sys
import zlib
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, NamedTuple

from release import artifacts, install_check, state
from release.artifacts import digest
from release.builder import GLIBC, Built, Commit
from release.signatures import SUMS
from release.tool_runner import ReleaseError, run

#: Tools whose versions determine the bytes of a build.
_TOOLS = ("build", "setuptools", "ziglang")
_PIN = re.compile(r'^    (\w+): str = "([^"]+)"$', re.MULTILINE)
_PROTOCOL = re.compile(r"^PROTOCOL = (\d+)$", re.MULTILINE)
_STATE = re.compile(r"^_OWN_FORM = (\d+)$", re.MULTILINE)


def write(commit: Commit, built: Built, out: Path, source: Path, scratch: Path) -> None:
    """Write the files.

    Args:
        commit: what the release was built from
        built: its files
        out: their folder
        source: the exported commit
        scratch: a folder for the environment whose packages the SBOM lists

    Raises:
        ReleaseError: the wheel cannot be installed, or the SBOM is invalid
    """
    environment = install_check.make_environment(
        Path(sys.executable), scratch / "inventory", scratch / "no-cache"
    )
    install_check.install(environment, str(built.wheel_for(install_check.machine())))
    changes = state.changes_of(commit.root, commit.version)
    texts = {
        "sbom.cdx.json": sbom(environment.python, built, source, commit.epoch),
        "provenance.json": provenance(built, commit),
        "RELEASE_NOTES.md": release_notes(commit.version, changes, built, source),
    }
    for name, text in texts.items():
        (out / name).write_text(text, "utf-8")
    artifacts.write_sums([*built.files, *(out / name for name in texts)], out / SUMS)


# ── SBOM ─────────────────────────────────────────────────────────────────────────────────────────


def sbom(python: Path, built: Built, source: Path, epoch: int) -> str:
    """Return the CycloneDX document of an environment in which the release is installed.

    Adds tritonserver, which the daemon downloads.
    """
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    command += ["--sv", "1.6", "--pyproject", str(source / "pyproject.toml"), str(python)]
    # Without PYTHONPATH: the metadata of a checkout does not belong to the environment.
    variables = {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONPATH": ""}
    document = json.loads(run("cyclonedx-py", command, variables, stderr=False))
    pip = {one["bom-ref"] for one in document["components"] if one["name"] == "pip"}
    pin = tritonserver_pin(source)
    purl = f"pkg:pypi/{pin['distribution']}@{pin['version']}"
    server = {
        "type": "application",
        "bom-ref": purl,
        "name": pin["distribution"],
        "version": pin["version"],
        "purl": purl,
        "scope": "optional",
        "description": f"tritonserver {pin['triton_version']}, downloaded at the first start or by install-server; "
        "not part of the release's files",
        "hashes": [{"alg": "SHA-256", "content": pin["sha256"]}],
    }
    kept = [one for one in document["components"] if one["bom-ref"] not in pip]
    document["components"] = [*kept, server]
    document["dependencies"] = [one for one in document["dependencies"] if one["ref"] not in pip]
    own = document["metadata"]["component"]
    own["purl"] = f"pkg:pypi/{own['name']}@{own['version']}"
    own["hashes"] = [{"alg": "SHA-256", "content": digest(built.sdist)}]
    text = json.dumps(document, indent=2) + "\n"
    _validate(text)
    return text


def _validate(text: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ReleaseError(f"the SBOM is invalid: {error}")


def tritonserver_pin(source: Path) -> dict[str, str]:
    """Return the fields of the wheel from which tritonserver is downloaded."""
    text = (source / "pytriton" / "_host" / "install" / "wheel.py").read_text("utf-8")
    pin = dict(_PIN.findall(text))
    if not {"distribution", "version", "sha256", "triton_version"} <= set(pin):
        raise ReleaseError(
            "pytriton/_host/install/wheel.py does not declare the pinned wheel as expected"
        )
    return pin


# ── provenance ───────────────────────────────────────────────────────────────────────────────────


def provenance(built: Built, commit: Commit) -> str:
    """Return which commit and tools the files were built from, as an in-toto statement (SLSA 1.0)."""
    tools: list[dict[str, Any]] = [
        {"name": name, "uri": f"pkg:pypi/{name}@{installed_version(name)}"} for name in _TOOLS
    ]
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": one.name, "digest": {"sha256": digest(one)}} for one in built.files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://slsa.dev/provenance/v1#scripts/release",
                "externalParameters": {"version": commit.version},
                "internalParameters": {
                    "SOURCE_DATE_EPOCH": commit.epoch,
                    "glibc": ".".join(map(str, GLIBC)),
                    "python": platform.python_version(),
                    "zlib": zlib.ZLIB_RUNTIME_VERSION,
                },
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit.id}},
                    *tools,
                ],
            },
            "runDetails": {"builder": {"id": "scripts/release"}},
        },
    }
    return json.dumps(document, indent=2) + "\n"


# ── release notes ────────────────────────────────────────────────────────────────────────────────


class Formats(NamedTuple):
    """The versions of the formats that decide about compatibility.

    Attributes:
        state: of the files in the state directory
        protocol: of messages between a daemon, its workers and its clients
    """

    state: int
    protocol: int


def formats(source: Path) -> Formats:
    """Return the versions of an exported commit."""
    return Formats(
        _number(source / "dispatcher" / "models" / "persistence" / "state_dir.py", _STATE),
        _number(source / "pytriton" / "_protocol" / "messages" / "base.py", _PROTOCOL),
    )


def _number(file: Path, pattern: re.Pattern[str]) -> int:
    match = pattern.search(file.read_text("utf-8"))
    if match is None:
        raise ReleaseError(f"{file.name} has no line that matches {pattern.pattern}")
    return int(match[1])


def release_notes(version: str, changes: str, built: Built, source: Path) -> str:
    """Return the notes as Markdown."""
    numbers = formats(source)
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in built.files)
    return f"""# pytriton-daemon {version}

{changes or "The changelog has no entries for this version."}

## Upgrade

1. Install the new version into the daemon's environment: `pip install --upgrade FILE`.
2. Run `pytriton-daemon upgrade`. Models stay loaded, and no request is lost. If the upgrade is refused, run
   `pytriton-daemon restart`, which restores the registrations.
3. Upgrade the environments of programs that register models: this version speaks protocol {numbers.protocol}.

State files have format {numbers.state}. docs/operations/releases.md lists which versions read which format, and
explains how to downgrade.

## Files

```
{sums}```
"""


def undocumented(root: Path, version: str) -> list[str]:
    """Return a sentence if docs/operations/releases.md lacks a row with the formats of a version."""
    numbers = formats(root)
    series = ".".join(version.split(".")[:2])
    row = f"| {series} | {numbers.state} | {numbers.protocol} |"
    page = root / "docs" / "operations" / "releases.md"
    if page.is_file() and row in page.read_text("utf-8"):
        return []
    return [f"docs/operations/releases.md has no row '{row}' in its table of compatible versions"]
