"""`serve`: which file changes replace the model, and what is printed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytriton._cli.commands.serve import _Files
from pytriton.foreground import error_line, output_of, request_line


def test_each_change_is_reported_once(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("x = 1\n")
    files = _Files([str(tmp_path)])
    assert files.changed() == []
    app.write_text("x = 12\n")
    assert files.changed() == ["app.py"]
    assert files.changed() == []
    (tmp_path / "new.tmp").write_text("x = 13\n")
    os.replace(tmp_path / "new.tmp", app)  # another file with the same name
    assert files.changed() == ["app.py"]
    (tmp_path / "added.py").touch()
    assert files.changed() == ["added.py"]
    (tmp_path / "added.py").unlink()
    assert files.changed() == ["added.py"]


def test_unrelated_files_are_ignored(tmp_path: Path) -> None:
    files = _Files([str(tmp_path)])
    (tmp_path / "data.csv").touch()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "outputs").mkdir()
    assert files.changed() == []
    (tmp_path / "outputs" / "one.txt").touch()
    assert files.changed() == []
    # While a module is missing, it may appear in a new package.
    files.include_folders = True
    (tmp_path / "outputs" / "module.py").touch()
    assert files.changed() == ["outputs/"]


def test_folders_may_be_created_and_removed(tmp_path: Path) -> None:
    package = tmp_path / "package"
    files = _Files([str(tmp_path)])
    files.add([str(package)])
    assert files.changed() == []
    package.mkdir()
    (package / "one.py").touch()
    assert files.changed() == ["one.py"]
    (package / "one.py").unlink()
    package.rmdir()
    assert files.changed() == ["one.py"]


def entry(status: str, error: str = "") -> str:
    about = {
        "time": 0.0,
        "id": "17fa-1",
        "model": "m",
        "version": 1,
        "instance": 0,
        "status": status,
        "queue_ns": None,
        "compute_ns": 1_500_000,
        "batch_requests": 1,
        "batch_rows": 1,
        "bytes_in": 1,
        "bytes_out": 1,
        "error": error,
    }
    return json.dumps(about)


def test_each_request_is_printed_as_one_line() -> None:
    def words(status: str, error: str = "") -> list[str]:
        return (request_line(entry(status, error), "/predict") or "").split()[1:]

    assert words("ok") == ["200", "1.5", "ms", "/predict"]
    assert words("callable", "HTTPError 404") == ["404", "1.5", "ms", "/predict"]
    failed = ["ms", "/predict", "KeyError", "[request", "id:", "17fa-1]"]
    assert words("callable", "KeyError") == ["500", "1.5", *failed]
    assert words("timeout", "KeyError") == ["timeout", "1.5", *failed]
    assert request_line("no record", "/predict") is None
    assert request_line(entry("ok"), "/predict", succeeded=True) is not None
    assert request_line(entry("input"), "/predict", succeeded=True) is None


def test_an_error_response_is_a_line() -> None:
    def shown(event: str, paths: tuple[str, str] | None = None, **record: str) -> list[str] | None:
        line = error_line(json.dumps({"source": "tritonserver", "event": event, **record}), paths)
        return None if line is None else line.split()[1:]

    text = "error response: 413 POST /predict 1.5 ms"
    assert shown(text) == ["413", "1.5", "ms", "/predict"]
    assert shown(text, ("/predict", "/v2/models/m/")) == ["413", "1.5", "ms", "/predict"]
    assert shown(text, ("/other", "/v2/models/m/")) is None
    infer = "error response: 500 POST /v2/models/m/infer 1.5 ms [request id: a-7]"
    wanted = ["500", "1.5", "ms", "/v2/models/m/infer", "[request", "id:", "a-7]"]
    assert shown(infer, ("/other", "/v2/models/m/")) == wanted
    assert shown("error response: 404 GET /x 0.0 ms") == ["404", "0.0", "ms", "GET", "/x"]
    assert shown(text, source="worker") is None
    assert shown("another line") is None
    assert shown(f"a model printed {text}") is None
    assert error_line("error response: no record", None) is None


def test_a_models_log_lines_are_shown_unchanged() -> None:
    def shown(**record: object) -> str | None:
        return output_of(json.dumps({"level": "info", "event": "text", **record}))

    assert shown(source="worker") == "text"
    assert shown(source="worker", event="a\x1b[31m") == r"a\x1b[31m"
    assert shown(kind="loading") is None
    assert shown(level="warning") == "text"
    assert shown(level="warning", reason="why") == "text: why"
    assert shown(level="error", source="worker", exception="Trace\nback") == "Trace\nback"
    assert output_of("no record") == "no record"
