"""Check the command line of a release, without the builds: what is signed when, and the exit codes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import release.__main__ as command
from release import artifacts, attachments, builder, signatures
from release.tool_runner import ReleaseError

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed"
)

FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.0"\n',
    "CHANGELOG.md": "# Changelog\n\n## [1.2.0] - 2026-01-02\n\n- a feature\n",
    "dispatcher/models/persistence/state_dir.py": "_OWN_FORM = 1\n",
    "pytriton/_protocol/messages/base.py": "PROTOCOL = 12\n",
    "docs/operations/releases.md": "| 1.2 | 1 | 12 | 1.2 |\n",
}
Run = Callable[..., int]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that is ready for the release of version 1.2.0. `key`, next to it, is permitted to sign."""
    folder = tmp_path_factory.mktemp("release")
    _, signers = signatures.make_key(folder)
    root = folder / "root"
    for name, text in {**FILES, signatures.SIGNERS: signers.read_text()}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "first"], check=True)
    subprocess.run([*git, "tag", "--annotate", "v1.2.0", "-m", "1.2.0"], check=True)
    return root


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(repository: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command. It builds one file; `check` is called when the file is checked."""

    def build(commit: builder.Commit, out: Path, scratch: Path, once: bool) -> builder.Built:
        out.mkdir()
        (out / "p.tar.gz").write_text("built")
        return builder.Built(out / "p.tar.gz", ())

    def write(commit: builder.Commit, built: builder.Built, out: Path, *_: Path) -> None:
        artifacts.write_sums(built.files, out / signatures.SUMS)

    def main(*words: str, check: Callable[[], None] = lambda: None) -> int:
        monkeypatch.setattr(command, "_check_installation", lambda built, scratch: check())
        monkeypatch.setattr("sys.argv", ["release", "--root", str(repository), *words])
        return command.main()

    monkeypatch.setattr(command, "_build", build)
    monkeypatch.setattr(attachments, "write", write)
    return main


def _signing(repository: Path, out: Path) -> list[str]:
    return ["--sign", str(repository.with_name("key")), "--out", str(out)]


def test_a_release_is_signed_after_the_checks_and_then_verified(
    run: Run, repository: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = out / "SHA256SUMS.sig"

    def check() -> None:
        assert (out / signatures.SUMS).is_file()
        assert not signature.exists()

    assert run(*_signing(repository, out), check=check) == 0
    assert signature.is_file()
    capsys.readouterr()
    signers = repository / signatures.SIGNERS
    assert run("--verify", str(out), "--signers", str(signers)) == 0
    output = capsys.readouterr()
    assert output.out.startswith(f'Good "{signatures.NAMESPACE}" signature')
    assert output.err == ""


def test_verifying_without_signers_exits_with_3(
    run: Run, repository: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*_signing(repository, out)) == 0
    (out / "SHA256SUMS.sig").write_text("whatever")
    assert run("--verify", str(out)) == 3
    assert "The signature was NOT verified" in capsys.readouterr().err
    (out / "p.tar.gz").write_text("another one")
    assert run("--verify", str(out)) == 1


def test_a_release_that_failed_its_checks_is_not_signed(
    run: Run, repository: Path, out: Path
) -> None:
    def fails() -> None:
        raise ReleaseError("the model does not answer")

    assert run(*_signing(repository, out), check=fails) == 1
    assert not (out / "SHA256SUMS.sig").exists()


def test_files_changed_after_the_checksums_are_not_signed(
    run: Run, repository: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def changes() -> None:
        (out / "p.tar.gz").write_text("another one")

    assert run(*_signing(repository, out), check=changes) == 1
    assert "p.tar.gz differs from the file in SHA256SUMS" in capsys.readouterr().err
    assert not (out / "SHA256SUMS.sig").exists()


def test_an_unlisted_key_is_refused_before_the_build(
    run: Run, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, _ = signatures.make_key(tmp_path)
    assert run("--sign", str(key), "--out", str(out)) == 1
    assert "ssh-keygen failed" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [["--dry-run"], ["--once"], ["--rehearse"], ["--verify", "folder"]],
    ids=lambda words: words[0],
)
def test_signing_requires_all_checks(
    run: Run, out: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        run("--sign", "key", "--out", str(out), *words)
    assert raised.value.code == 2
    assert f"--sign cannot be combined with {words[0]}" in capsys.readouterr().err
    assert not out.exists()


def test_signers_require_verify(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--signers", "file")
    assert "--signers requires --verify" in capsys.readouterr().err
