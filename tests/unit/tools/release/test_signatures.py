"""Check that a release's signature covers every file, and that only permitted signers are accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from release import artifacts, signatures
from release.tool_runner import ReleaseError

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed"
)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signatures.make_key(tmp_path_factory.mktemp("keys"))[0]


@pytest.fixture
def signers(key: Path) -> Path:
    return key.with_name(signatures.SIGNERS)


@pytest.fixture
def release(tmp_path: Path, key: Path) -> Path:
    """A folder with a signed release."""
    folder = tmp_path / "1.2.3"
    folder.mkdir()
    (folder / "p.whl").write_text("a wheel")
    (folder / "p.tar.gz").write_text("an sdist")
    files = [folder / "p.whl", folder / "p.tar.gz"]
    document = {
        "subject": [
            {"name": one.name, "digest": {"sha256": artifacts.digest(one)}} for one in files
        ],
        "predicate": {
            "buildDefinition": {"resolvedDependencies": [{"digest": {"gitCommit": "c0ffee"}}]}
        },
    }
    (folder / "provenance.json").write_text(json.dumps(document))
    artifacts.write_sums([*files, folder / "provenance.json"], folder / signatures.SUMS)
    assert signatures.sign(folder / signatures.SUMS, key) == folder / "SHA256SUMS.sig"
    return folder


def test_a_signed_release_is_verified(release: Path, signers: Path) -> None:
    signature, sums, provenance = signatures.check(release, signers)
    assert signature.startswith(f'Good "{signatures.NAMESPACE}" signature for {signatures.SIGNER}')
    assert sums == "3 of 3 files are present and match SHA256SUMS"
    assert "commit c0ffee" in provenance


def test_missing_downloads_are_skipped(release: Path, signers: Path) -> None:
    (release / "p.tar.gz").unlink()
    assert "2 of 3 files are present and match SHA256SUMS" in signatures.check(release, signers)


def test_a_replaced_file_is_found(release: Path, signers: Path) -> None:
    (release / "p.whl").write_text("another wheel")
    with pytest.raises(ReleaseError, match=r"p\.whl differs from the file in SHA256SUMS"):
        signatures.check(release, signers)


def test_an_unlisted_file_is_found(release: Path, signers: Path) -> None:
    (release / "q.whl").write_text("one more")
    with pytest.raises(ReleaseError, match=r"SHA256SUMS does not list q\.whl"):
        signatures.check(release, signers)


def test_replaced_checksums_are_found(release: Path, signers: Path) -> None:
    """Checksums that match the files are rejected if their signature does not match."""
    (release / "p.whl").write_text("another wheel")
    artifacts.write_sums([release / "p.whl"], release / signatures.SUMS)
    with pytest.raises(ReleaseError, match="ssh-keygen failed"):
        signatures.check_signature(release / signatures.SUMS, signers)


def test_provenance_of_other_files_is_found(release: Path, tmp_path: Path, key: Path) -> None:
    text = (release / "provenance.json").read_text()
    other = artifacts.digest(release / signatures.SUMS)
    (release / "provenance.json").write_text(
        text.replace(artifacts.digest(release / "p.whl"), other)
    )
    files = [release / name for name in ("p.whl", "p.tar.gz", "provenance.json")]
    artifacts.write_sums(files, release / signatures.SUMS)
    with pytest.raises(ReleaseError, match=r"p\.whl differs from the file in provenance\.json"):
        signatures.check(release, None)


def test_a_signature_by_another_key_is_rejected(
    release: Path, signers: Path, tmp_path: Path
) -> None:
    stranger, _ = signatures.make_key(tmp_path)
    signatures.sign(release / signatures.SUMS, stranger)
    with pytest.raises(ReleaseError, match="ssh-keygen failed"):
        signatures.check(release, signers)


def test_a_signature_for_another_purpose_is_rejected(release: Path, signers: Path) -> None:
    others = release.with_name("others")
    others.write_text(signers.read_text().replace(signatures.NAMESPACE, "git"))
    with pytest.raises(ReleaseError, match="ssh-keygen failed"):
        signatures.check(release, others)


def test_missing_files_are_named(release: Path, signers: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=f"no permitted signers: no file {tmp_path}/none"):
        signatures.check(release, tmp_path / "none")
    (release / "SHA256SUMS.sig").unlink()
    with pytest.raises(ReleaseError, match="the release is not signed"):
        signatures.check(release, signers)


@pytest.mark.parametrize("line", ["no sum", f"{64 * '0'}  ../../etc/passwd", f"{64 * '0'} p.whl"])
def test_invalid_checksum_lines_are_refused(release: Path, line: str) -> None:
    (release / signatures.SUMS).write_text(f"{line}\n")
    with pytest.raises(ReleaseError, match="an invalid line"):
        signatures.check(release, None)
