"""The inventory of a release, from an environment: the SBOM (CycloneDX) and the licences."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from release.artifacts import digest
from release.builder import Built
from release.tool_runner import ReleaseError, run

NAME = "pytriton-daemon"
_PIN = re.compile(r'^    (\w+): str = "([^"]+)"$', re.MULTILINE)
#: Prints the metadata of all that is installed; pip of an old Python does not know the newest fields.
_METADATA = """
import json
from importlib.metadata import distributions
print(json.dumps([{
    "name": one.metadata["Name"],
    "version": one.version,
    "license_expression": one.metadata.get("License-Expression"),
    "license": one.metadata.get("License"),
    "classifier": one.metadata.get_all("Classifier") or [],
    "requires": one.requires or [],
} for one in distributions()]))
"""
#: What says which licence a distribution has, where its metadata has no expression (PEP 639).
_CLASSIFIER = "License :: OSI Approved :: "
_LONG = 60  #: a licence field longer than this is the licence's text


@dataclass(frozen=True)
class Package:
    """A distribution that is installed in an environment."""

    name: str
    version: str
    licence: str
    requires: tuple[str, ...]  #: names of the distributions that it asks for, extras left out

    @property
    def ref(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(python: Path) -> list[Package]:
    """Return what is installed in an environment, by name; pip itself and its like are left out."""
    # -I: of that environment alone. The folder of a checkout has metadata of its own, and scripts set PYTHONPATH.
    found = json.loads(run("reading the installation", [str(python), "-I", "-c", _METADATA]))
    packages = [
        Package(
            normal(one["name"]),
            one["version"],
            licence_of(one),
            tuple(sorted({_required(text) for text in one["requires"] if "extra ==" not in text})),
        )
        for one in found
        if normal(one["name"]) not in ("pip", "setuptools", "wheel")
    ]
    return sorted(packages, key=lambda one: one.name)


def _required(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return normal(match[0])


def licence_of(metadata: dict[str, Any]) -> str:
    """Return the licence that a distribution's metadata names; "not named" if it names none."""
    if metadata.get("license_expression"):
        return str(metadata["license_expression"])
    classified = [
        one.rpartition(" :: ")[2]
        for one in metadata.get("classifier", [])
        if one.startswith(_CLASSIFIER)
    ]
    if classified:
        return ", ".join(classified)
    text = str(metadata.get("license") or "").strip()
    return text if text and len(text) < _LONG and "\n" not in text else "not named"


def tritonserver_pin(source: Path) -> dict[str, str]:
    """Return what the source says of the wheel that tritonserver is fetched from."""
    text = (source / "pytriton" / "_host" / "install" / "wheel.py").read_text("utf-8")
    pin = dict(_PIN.findall(text))
    if not {"distribution", "version", "sha256", "triton_version"} <= set(pin):
        raise ReleaseError(
            "pytriton/_host/install/wheel.py does not name the pinned wheel any more"
        )
    return pin


def sbom(built: Built, version: str, packages: list[Package], source: Path, epoch: int) -> str:
    """Return the CycloneDX document of a release: itself, what it needs, and the server that it fetches.

    Args:
        built: the release's files
        version: the release's
        packages: what an empty environment has after the release was installed
        source: the exported files
        epoch: the time that the document gets
    """
    own = f"pkg:pypi/{NAME}@{version}"
    known = {one.name: one for one in packages}
    pin = tritonserver_pin(source)
    server = f"pkg:pypi/{pin['distribution']}@{pin['version']}"
    names = {one.name for one in packages}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + digest(built.sdist))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": NAME,
                "version": version,
                "purl": own,
                "licenses": [{"expression": "Apache-2.0"}],
                "hashes": [{"alg": "SHA-256", "content": digest(built.sdist)}],
            },
        },
        "components": [
            *(_component(one) for one in packages if one.name != NAME),
            {
                "type": "application",
                "bom-ref": server,
                "name": pin["distribution"],
                "version": pin["version"],
                "purl": server,
                "scope": "optional",
                "description": f"tritonserver {pin['triton_version']}: fetched by the first start or by "
                "install-server, no part of the release's files",
                "hashes": [{"alg": "SHA-256", "content": pin["sha256"]}],
            },
        ],
        "dependencies": [
            {
                "ref": one.ref if one.name != NAME else own,
                "dependsOn": [known[name].ref for name in one.requires if name in names],
            }
            for one in packages
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _component(package: Package) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": package.ref,
        "name": package.name,
        "version": package.version,
        "purl": package.ref,
        "licenses": [{"license": {"name": package.licence}}],
    }


def check_sbom(text: str) -> None:
    """Compare a document with the schema of CycloneDX.

    Raises:
        ReleaseError: it is not valid; says where.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ReleaseError(f"the SBOM is not valid: {error}")
