"""The signature of a release, by OpenSSH: SHA256SUMS is signed, and SHA256SUMS has all other files.

```
files ──▶ SHA256SUMS ──ssh-keygen -Y sign, the key of who releases──▶ SHA256SUMS.sig
                     ──ssh-keygen -Y verify, release-signers────────▶ who signed it
```

The public keys lie in `release-signers` of the repository, in OpenSSH's form of allowed signers. A key beside the files
would prove nothing: whoever exchanges these exchanges that, too.
"""

from __future__ import annotations

import json
from pathlib import Path

from release.artifacts import digest
from release.tool_runner import ReleaseError, run

#: What a signature is for: one of a commit or of a mail does not count.
NAMESPACE = "pytriton-daemon-release"
#: Whom a line of `release-signers` has to name.
SIGNER = "releases@pytriton-daemon"
SIGNERS = "release-signers"
SUMS = "SHA256SUMS"


def sign(sums: Path, key: Path) -> Path:
    """Sign a file of sums and return the signature's file.

    Args:
        sums: SHA256SUMS
        key: a private key of OpenSSH, or a public one whose private half an agent holds

    Raises:
        ReleaseError: ssh-keygen is not there, or refuses the key.
    """
    signature = sums.with_name(f"{sums.name}.sig")
    signature.unlink(missing_ok=True)
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)]
    run("ssh-keygen", command)
    return signature


def check_key(key: Path, signers: Path, folder: Path) -> None:
    """Find out whether a key may sign, by a signature that it makes in a folder for what is needed meanwhile.

    Raises:
        ReleaseError: as check_signature().
    """
    probe = folder / "probe"
    probe.write_text("who releases tries a key\n")
    if not signers.is_file():
        raise ReleaseError(f"there is no file {signers} that names who may sign")
    sign(probe, key)
    check_signature(probe, signers)


def make_key(folder: Path) -> tuple[Path, Path]:
    """Make a key without a passphrase, and a file that names it alone as a signer; return both."""
    key, signers = folder / "key", folder / SIGNERS
    run("ssh-keygen", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
    public = key.with_suffix(".pub").read_text("utf-8")
    signers.write_text(f'{SIGNER} namespaces="{NAMESPACE}" {public}', "utf-8")
    return key, signers


def check_signature(sums: Path, signers: Path) -> str:
    """Check the signature beside a file of sums, and return what ssh-keygen says of it.

    Raises:
        ReleaseError: there is none, it does not fit, or none of the signers made it.
    """
    signature = sums.with_name(f"{sums.name}.sig")
    for file, what in ((signature, "the release is not signed"), (signers, "nobody may sign")):
        if not file.is_file():
            raise ReleaseError(f"{what}: there is no file {file}")
    options = ["-f", str(signers), "-I", SIGNER, "-n", NAMESPACE, "-s", str(signature)]
    return run("ssh-keygen", ["ssh-keygen", "-Y", "verify", *options], given=sums).strip()


def check(folder: Path, signers: Path | None) -> list[str]:
    """Check the files of a release against its sums and its provenance, and these against the signature.

    Args:
        folder: has the files; those that were not downloaded are passed over
        signers: who may sign; None: the signature is not looked at

    Returns:
        What was found to be right, a line each.

    Raises:
        ReleaseError: a file is not what it should be; tells which one.
    """
    said = [] if signers is None else [check_signature(folder / SUMS, signers)]
    sums = _sums(folder / SUMS)
    there = [name for name in sums if (folder / name).is_file()]
    for name in there:
        _compare(folder / name, sums[name], SUMS)
    strange = {one.name for one in folder.iterdir()} - set(sums) - {SUMS, f"{SUMS}.sig"}
    if strange:
        raise ReleaseError(f"{SUMS} does not name {', '.join(sorted(strange))}")
    said.append(f"{len(there)} of {len(sums)} files are here, and as {SUMS} says")
    if (folder / "provenance.json").is_file():
        said.append(_check_provenance(folder))
    return said


def _sums(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise ReleaseError(f"{file} cannot be read: {error.strerror}") from error
    sums = {}
    for line in lines:
        value, space, name = line.partition("  ")
        if not space or len(value) != 64 or Path(name).name != name:
            raise ReleaseError(f"{file} has a line that is no sum of a file beside it: {line!r}")
        sums[name] = value
    return sums


def _check_provenance(folder: Path) -> str:
    document = json.loads((folder / "provenance.json").read_text("utf-8"))
    for one in document["subject"]:
        file = folder / one["name"]
        if file.is_file():
            _compare(file, one["digest"]["sha256"], "provenance.json")
    source, *_ = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    return f"provenance.json says that they were built from commit {source['digest']['gitCommit']}"


def _compare(file: Path, wanted: str, said_by: str) -> None:
    if digest(file) != wanted:
        raise ReleaseError(f"{file.name} is not the file that {said_by} names: its SHA-256 differs")
