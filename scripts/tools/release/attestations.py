"""Rehearse the attestation (PEP 740) of a wheel: make it as the publishing job does, and verify it as a user does.

```
job's identity token ──▶ certificate authority ──certificate─┐
wheel's name and SHA-256 ──────────────────────────statement─┴─signature──▶ transparency log ──▶ attestation
wheel, attestation, trusted root ──pypi-attestations verify──▶ OK
```

Only Sigstore can issue an attestation that a package index accepts. In the rehearsal, `sigstore_instance.js` takes its
place, with temporary keys; the token is one that nobody signed, and the trusted root is that of the instance.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from release.tool_runner import ReleaseError, run

_INSTANCE = Path(__file__).with_name("sigstore_instance.js")
_NPM_PACKAGE = "@sigstore/mock@^0.13"
#: The identity of the publishing job: .github/workflows/publish.yml of an invented owner.
_REPOSITORY = "owner/pytriton-daemon"
_WORKFLOW = "publish.yml"
#: Where sigstore caches the trusted root, which it uses as it is when it is offline.
_CACHED_ROOT = f"sigstore-python/tuf/{quote('https://tuf-repo-cdn.sigstore.dev', safe='')}"


def rehearse(wheel: Path, scratch: Path) -> Iterator[str]:
    """Make and verify an attestation of a wheel; check that invalid ones are refused; yield a line about each step.

    Raises:
        ReleaseError: a step failed
    """
    if shutil.which("npm") is None or sys.version_info < (3, 10):
        yield "attestation NOT rehearsed: it needs npm, and Python 3.10 or newer"
        return
    folder = scratch / "attestation"
    run("npm", ["npm", "install", "--no-save", "--prefix", str(folder), _NPM_PACKAGE])
    provenance, root = folder / "provenance.json", folder / "cache" / _CACHED_ROOT
    environment = {**os.environ, "NODE_PATH": str(folder / "node_modules")}
    with subprocess.Popen(
        ["node", str(_INSTANCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as instance:
        assert instance.stdout is not None
        line = instance.stdout.readline()
        if not line:
            raise ReleaseError(f"{_INSTANCE.name} did not start: see its error above")
        trust = json.loads(line)
        provenance.write_text(_attest(wheel, trust), "utf-8")
    root.mkdir(parents=True)
    (root / "trusted_root.json").write_text(json.dumps(trust["trustedRoot"]), "utf-8")

    _verify(wheel, provenance, folder / "cache")
    yield f"{wheel.name} has a valid attestation"
    changed = folder / wheel.name
    changed.write_bytes(wheel.read_bytes() + b"\0")
    _refuse("subject does not match", changed, provenance, folder / "cache")
    yield "pypi-attestations refuses a changed wheel"
    _refuse("signed by repository", wheel, provenance, folder / "cache", "another/repository")
    yield "pypi-attestations refuses the attestation of another repository"
    _refuse("certificate", wheel, provenance, folder / "empty")
    yield "pypi-attestations refuses the certificate of another authority"


def _attest(wheel: Path, trust: dict[str, Any]) -> str:
    """Return the provenance of a wheel, which contains its attestation, as JSON."""
    import jwt
    from pypi_attestations import (
        Attestation,
        AttestationBundle,
        Distribution,
        GitHubPublisher,
        Provenance,
    )
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import SigningContext

    now, ref = int(time.time()), "refs/tags/v0"
    claims = {
        "iss": "https://token.actions.githubusercontent.com",
        "aud": "sigstore",
        "sub": f"repo:{_REPOSITORY}:environment:pypi",
        "iat": now,
        "exp": now + 600,
        "repository": _REPOSITORY,
        "ref": ref,
        "workflow_ref": f"{_REPOSITORY}/.github/workflows/{_WORKFLOW}@{ref}",
    }
    token = IdentityToken(jwt.encode(claims, "", algorithm="none"))
    context = SigningContext.from_trust_config(ClientTrustConfig.from_json(json.dumps(trust)))
    with context.signer(token) as signer:
        attestation = Attestation.sign(signer, Distribution.from_file(wheel))
    publisher = GitHubPublisher(repository=_REPOSITORY, workflow=_WORKFLOW)
    bundle = AttestationBundle(publisher=publisher, attestations=[attestation])
    text: str = Provenance(attestation_bundles=[bundle]).model_dump_json()
    return text


def _verify(wheel: Path, provenance: Path, cache: Path, repository: str = _REPOSITORY) -> None:
    """Verify a wheel offline with the command for users.

    Raises:
        ReleaseError: the attestation is invalid, or does not belong to the wheel or repository
    """
    command = [sys.executable, "-m", "pypi_attestations", "verify", "pypi", "--offline"]
    command += ["--provenance-file", str(provenance)]
    command += ["--repository", f"https://github.com/{repository}", str(wheel)]
    run("pypi-attestations", command, {"XDG_CACHE_HOME": str(cache)})


def _refuse(
    reason: str, wheel: Path, provenance: Path, cache: Path, repository: str = _REPOSITORY
) -> None:
    """Check that `_verify` fails for a reason.

    Raises:
        ReleaseError: it succeeded, or failed for another reason
    """
    try:
        _verify(wheel, provenance, cache, repository)
    except ReleaseError as error:
        if reason not in str(error):
            raise
    else:
        raise ReleaseError(f"pypi-attestations accepted {wheel}, but should say: {reason}")
