"""Sign and verify a release with OpenSSH. SHA256SUMS covers all other files, and is signed.

```
files ──▶ SHA256SUMS ──ssh-keygen -Y sign, with a private key───────▶ SHA256SUMS.sig
                     ──ssh-keygen -Y verify, with release-signers───▶ the signer
```

The file `release-signers` in the repository has the public keys, in OpenSSH's format of allowed signers. A public key
next to the files would prove nothing: an attacker who replaces the files could replace it, too.
"""

from __future__ import annotations

import json
from pathlib import Path

from release.artifacts import digest
from release.tool_runner import ReleaseError, run

#: Purpose of a signature. OpenSSH rejects those made for something else, such as a commit.
NAMESPACE = "pytriton-daemon-release"
#: The principal in the lines of `release-signers`.
SIGNER = "releases@pytriton-daemon"
SIGNERS = "release-signers"
SUMS = "SHA256SUMS"


def sign(sums: Path, key: Path) -> Path:
    """Sign a file and return the path of the signature.

    Args:
        sums: SHA256SUMS
        key: an OpenSSH private key, or a public key whose private key an agent holds

    Raises:
        ReleaseError: ssh-keygen is not installed, or rejects the key
    """
    signature = sums.with_name(f"{sums.name}.sig")
    signature.unlink(missing_ok=True)
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)]
    run("ssh-keygen", command)
    return signature


def check_key(key: Path, signers: Path, folder: Path) -> None:
    """Check that `signers` lists a key: sign a file in a temporary folder, and verify the signature.

    Raises:
        ReleaseError: it does not
    """
    probe = folder / "probe"
    probe.write_text("check of the signing key\n")
    if not signers.is_file():
        raise ReleaseError(f"no file {signers} with the permitted signers")
    sign(probe, key)
    check_signature(probe, signers)


def make_key(folder: Path) -> tuple[Path, Path]:
    """Create a key without a passphrase, and a file that lists it as the only signer; return both paths."""
    key, signers = folder / "key", folder / SIGNERS
    run("ssh-keygen", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
    public = key.with_suffix(".pub").read_text("utf-8")
    signers.write_text(f'{SIGNER} namespaces="{NAMESPACE}" {public}', "utf-8")
    return key, signers


def check_signature(sums: Path, signers: Path) -> str:
    """Verify the signature of a file, and return the output of ssh-keygen.

    Raises:
        ReleaseError: the signature is missing or invalid, or was not made by one of the signers
    """
    signature = sums.with_name(f"{sums.name}.sig")
    for file, what in ((signature, "the release is not signed"), (signers, "no permitted signers")):
        if not file.is_file():
            raise ReleaseError(f"{what}: no file {file}")
    options = ["-f", str(signers), "-I", SIGNER, "-n", NAMESPACE, "-s", str(signature)]
    return run("ssh-keygen", ["ssh-keygen", "-Y", "verify", *options], stdin=sums).strip()


def check(folder: Path, signers: Path | None) -> list[str]:
    """Verify the signature of a release's checksums, and compare its files with the checksums and the provenance.

    Args:
        folder: has the files; files that were not downloaded are skipped
        signers: file of permitted signers; None: do not verify the signature

    Returns:
        The results, a line for each.

    Raises:
        ReleaseError: a file differs; names it
    """
    results = [] if signers is None else [check_signature(folder / SUMS, signers)]
    sums = _sums(folder / SUMS)
    there = [name for name in sums if (folder / name).is_file()]
    for name in there:
        _compare(folder / name, sums[name], SUMS)
    unknown = {one.name for one in folder.iterdir()} - set(sums) - {SUMS, f"{SUMS}.sig"}
    if unknown:
        raise ReleaseError(f"{SUMS} does not list {', '.join(sorted(unknown))}")
    results.append(f"{len(there)} of {len(sums)} files are present and match {SUMS}")
    if (folder / "provenance.json").is_file():
        results.append(_check_provenance(folder))
    return results


def _sums(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise ReleaseError(f"cannot read {file}: {error.strerror}") from error
    sums = {}
    for line in lines:
        value, space, name = line.partition("  ")
        if not space or len(value) != 64 or Path(name).name != name:
            raise ReleaseError(f"{file} has an invalid line: {line!r}")
        sums[name] = value
    return sums


def _check_provenance(folder: Path) -> str:
    document = json.loads((folder / "provenance.json").read_text("utf-8"))
    for one in document["subject"]:
        file = folder / one["name"]
        if file.is_file():
            _compare(file, one["digest"]["sha256"], "provenance.json")
    source, *_ = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    return f"provenance.json: built from commit {source['digest']['gitCommit']}"


def _compare(file: Path, expected: str, source: str) -> None:
    if digest(file) != expected:
        raise ReleaseError(
            f"{file.name} differs from the file in {source}: its SHA-256 is another one"
        )
