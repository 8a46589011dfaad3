"""The provenance file: which commit the files came from, and which tools made them (in-toto statement, SLSA 1.0).

SHA256SUMS has its sum, and may be signed (signatures.py). Whoever distrusts it builds the release again: the same commit
gives the same bytes.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import version as installed_version
from typing import Any

from release.artifacts import digest
from release.builder import GLIBC, Built, Commit

#: The tools whose versions decide about the bytes.
_TOOLS = ("build", "setuptools", "ziglang")


def statement(built: Built, commit: Commit) -> str:
    """Return the statement about the files of a release that was built from a commit, as JSON."""
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
