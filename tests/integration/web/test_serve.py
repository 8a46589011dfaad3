"""`pytriton-daemon serve` and `pytriton.serve`: a function in the foreground, its files, and what is left of it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.ports import lasting_port
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton._protocol.exit_codes import ExitCode

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")

APP = '''
def predict(text: str) -> str:
    """Answer."""
    print("worker got", text)
    if text == "boom":
        raise KeyError("a secret")
    return "one " + text
'''


class Serving:
    """One `serve` process of a folder, whose descendants all carry a mark."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        code: str = "",
        daemon: RunningDaemon | None = None,
        keep: Sequence[int] = (),
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.daemon = daemon
        self.log = folder / f"{self.mark}.txt"
        self.runtime = Path(tempfile.mkdtemp(prefix="pts-"))
        self.port = lasting_port()
        command = [sys.executable, "-m", "pytriton._cli", "serve", *words]
        if code:
            command = [sys.executable, "-c", code.replace("PORT", str(self.port))]
        elif daemon is not None:
            command += ["--runtime-dir", daemon.config.runtime_dir]
        elif "--port" not in words:
            command += ["--port", str(self.port)]
        self.output = open(self.log, "wb")  # noqa: SIM115  closed below
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
            pass_fds=keep,
            env={**os.environ, "SERVE_MARK": self.mark, "XDG_RUNTIME_DIR": str(self.runtime)},
        )

    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        def found() -> bool:
            assert self.process.poll() is None or text in self.said(), self.said()
            return text in self.said()

        eventually(found, self.said, 120.0)

    def wait_served(self) -> None:
        self.wait_for("Press Ctrl-C")

    def call(self, text: Any = "x", path: str = "/predict", port: int | None = None) -> Any:
        status, answer = self.answer(text, path, port)
        assert status == 200, answer
        return answer

    def answer(self, text: Any, path: str = "/predict", port: int | None = None) -> tuple[int, Any]:
        client = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)
        try:
            headers = {"Content-Type": "application/json"}
            client.request("POST", path, json.dumps({"text": text}), headers)
            response = client.getresponse()
            return response.status, json.loads(response.read())
        finally:
            client.close()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Do what a terminal does: signal the process and those that share its session."""
        os.killpg(self.process.pid, number)

    def assert_nothing_left(self) -> None:
        def processes() -> list[psutil.Process]:
            found = []
            for one in psutil.process_iter():
                try:
                    if one.environ().get("SERVE_MARK") != self.mark or one.status() == "zombie":
                        continue
                    pids = [parent.pid for parent in one.parents()]
                    if (
                        self.daemon is None or self.daemon.process.pid not in pids
                    ):  # its fork server
                        found.append(one)
                except psutil.Error:
                    continue
            return found

        eventually(lambda: not processes(), lambda: f"{processes()}\n{self.said()}")
        eventually(lambda: not [*self.runtime.iterdir()], lambda: str([*self.runtime.iterdir()]))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()
        self.assert_nothing_left()
        shutil.rmtree(self.runtime)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def serving(folder: Path) -> Iterator[Serving]:
    """`serve app.py:predict --reload`, which serves."""
    one = Serving(folder, "app.py:predict", "--reload")
    try:
        one.wait_served()
        yield one
    finally:
        one.close()


def test_requests_and_output_are_shown(serving: Serving) -> None:
    assert serving.call("x") == "one x"
    assert serving.answer("boom")[0] == 500
    assert serving.answer(7)[0] == 422
    for status in (200, 500, 422):
        serving.wait_for(f"  {status}  ")
    said = serving.said()
    assert f"http://127.0.0.1:{serving.port}/predict" in said
    assert f"http://127.0.0.1:{serving.port}/docs" in said
    assert "\nworker got x\n" in said
    assert "raise KeyError(\"a secret\")\nKeyError: 'a secret'\n" in said
    lines = [one for one in said.splitlines() if one.split()[1:2] in (["200"], ["500"], ["422"])]
    assert len(lines) == 3
    for line in lines:
        assert "  /predict" in line
        assert line.split()[3] == "ms"
        assert ("request id" in line) == (" 500 " in line)
    assert "worker started" not in said


def test_each_refused_request_is_a_line(serving: Serving) -> None:
    kind = "Content-Type: application/json"
    for line, status in (
        ("POST /absent", 404),
        ("GET /predict", 405),
        ("POST /predict HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n", 415),
        (f"POST /predict HTTP/1.1\r\nHost: h\r\n{kind}\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (f"POST /predict HTTP/1.1\r\nHost: h\r\n{kind}\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n", 400),
    ):  # fmt: skip
        whole = (
            line if "\r\n" in line else f"{line} HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", serving.port), 60) as client:
            client.sendall(f"{whole}x".encode())
            assert int(client.recv(1 << 16).split()[1]) == status
    assert serving.answer(7)[0] == 422
    assert serving.answer("boom")[0] == 500
    for number in range(3):
        serving.call(f"{number}")

    def lines() -> list[list[str]]:
        words = [one.split() for one in serving.said().splitlines()]
        return sorted([one[1], *one[4:6]] for one in words if one[3:4] == ["ms"])

    wanted = [
        *[["200", "/predict"]] * 3,
        ["400", "/predict"],
        ["404", "/absent"],
        ["405", "GET", "/predict"],
        ["413", "/predict"],
        ["415", "/predict"],
        ["422", "/predict"],
        ["500", "/predict", "[request"],
    ]
    eventually(lambda: lines() == wanted, lambda: f"{lines()}\n{serving.said()}")


def test_saved_changes_are_served_without_a_lost_request(serving: Serving) -> None:
    answers: list[str] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            answers.append(serving.call("x"))  # a failure ends the thread, and is seen below

    threads = [threading.Thread(target=load) for _ in range(4)]
    for one in threads:
        one.start()
    app = serving.folder / "app.py"

    def expect(answer: str) -> None:
        eventually(lambda: serving.call("x") == answer, serving.said)

    try:
        app.write_text(APP.replace("one", "two"))  # written in place, with the same size
        expect("two x")
        app.write_text(APP.replace("one", "six"))  # within the same second
        expect("six x")
        (serving.folder / "new.py").write_text(APP.replace("one", "ten"))
        os.replace(serving.folder / "new.py", app)  # as editors save
        expect("ten x")
        (serving.folder / "helper.py").write_text("ANSWER = 'helper '\n")  # a new import
        app.write_text("from helper import ANSWER\n" + APP.replace('"one "', "ANSWER"))
        expect("helper x")
        (serving.folder / "helper.py").write_text("ANSWER = 'changed '\n")
        expect("changed x")
        (serving.folder / "helper.py").unlink()  # breaks it
        serving.wait_for("No module named 'helper'")
        assert serving.call("x") == "changed x"
        (serving.folder / "helper").mkdir()
        (serving.folder / "helper/__init__.py").write_text("from helper.part import ANSWER\n")
        (serving.folder / "helper/part.py").write_text("ANSWER = 'package '\n")
        expect("package x")
        (serving.folder / "helper/part.py").write_text("ANSWER = 'inside '\n")
        expect("inside x")
        app.write_text("def predict(:\n")
        serving.wait_for("the previous version keeps serving")
        serving.wait_for("SyntaxError")
        assert serving.call("x") == "inside x"
        app.write_text("raise ValueError('on import')\n")
        serving.wait_for("ValueError: on import")
        app.write_text(APP)
        expect("one x")
    finally:
        stop.set()
        alive = [one.is_alive() for one in threads]
        for one in threads:
            one.join()
    assert all(alive), "a request failed"
    assert len(answers) > 100


def test_changes_behind_links_and_in_replaced_folders_are_served(folder: Path) -> None:
    versions = [folder / "first", folder / "second"]
    for version, word in zip(versions, ("one", "two")):
        version.mkdir()
        (version / "code.py").write_text(APP.replace("one", word))
    (folder / "current").symlink_to("first")
    (folder / "app").mkdir()
    (folder / "app" / "linked.py").symlink_to("../current/code.py")
    serving = Serving(folder, "app/linked.py:predict", "--reload")

    def expect(answer: str) -> None:
        eventually(lambda: serving.call("x") == answer, serving.said)

    try:
        serving.wait_served()
        assert serving.call("x") == "one x"
        (versions[0] / "code.py").write_text(APP.replace("one", "six"))  # the file behind the link
        expect("six x")
        (folder / "next").symlink_to("second")
        os.replace(folder / "next", folder / "current")  # as releases are switched
        expect("two x")
        (versions[1] / "code.py").write_text(APP.replace("one", "ten"))
        expect("ten x")
        shutil.rmtree(folder / "app")
        serving.wait_for("the previous version keeps serving")
        assert serving.call("x") == "ten x"
        (folder / "app").mkdir()
        (folder / "app" / "linked.py").write_text(APP.replace("one", "new"))
        expect("new x")
        (folder / "app" / "linked.py").write_text(APP.replace("one", "own"))
        expect("own x")
        serving.interrupt()
        assert serving.process.wait(60) == 0
    finally:
        serving.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_everything(serving: Serving, number: int) -> None:
    serving.call("x")
    serving.interrupt(number)
    assert serving.process.wait(60) == 0
    assert serving.said().endswith("pytriton-daemon: stopped\n")
    assert "Error" not in serving.said()


@pytest.mark.parametrize("delay_s", [0.05, 0.3, 0.6, 0.9, 1.4])
def test_an_interruption_at_any_moment_leaves_nothing_behind(folder: Path, delay_s: float) -> None:
    one = Serving(folder, "app.py:predict", "--reload")
    try:
        time.sleep(delay_s)
        one.interrupt()
        if delay_s > 0.5:
            time.sleep(0.02)
            one.interrupt()
        code = one.process.wait(60)
        if code not in (0, ExitCode.INTERRUPTED):
            # Only the interpreter's own start prints a traceback.
            assert "commands/serve.py" not in one.said()
        else:
            assert "Traceback" not in one.said()
    finally:
        one.close()


def test_a_killed_serve_leaves_nothing_behind(serving: Serving) -> None:
    serving.process.kill()
    serving.process.wait()
    serving.assert_nothing_left()


def test_with_a_running_daemon_only_the_model_ends(folder: Path, daemon: RunningDaemon) -> None:
    def names() -> list[str]:
        return [one.name for one in daemon.client.models()]

    (folder / "app.py").write_text(APP.replace("predict", "foreground"))
    before = names()
    port = int(daemon.http.rpartition(":")[2])
    for number in (signal.SIGINT, signal.SIGKILL):
        one = Serving(folder, "app.py", "--reload", daemon=daemon)
        try:
            one.wait_served()
            assert one.call("x", "/foreground", port) == "one x"
            (folder / "app.py").write_text(
                APP.replace("predict", "foreground").replace("one", str(number.name))
            )
            one.wait_for("replaced foreground")
            assert one.call("x", "/foreground", port) == f"{number.name} x"
            other = Serving(folder, "app.py", daemon=daemon)
            try:
                assert other.process.wait(60) == ExitCode.REGISTRATION_FAILED
                assert "--name" in other.said()
            finally:
                other.close()
            one.interrupt(number)
            one.process.wait(60)
            eventually(lambda: names() == before, lambda: str(names()))
        finally:
            one.close()
        (folder / "app.py").write_text(APP.replace("predict", "foreground"))


def test_a_daemon_that_exits_ends_it(folder: Path, fresh_daemon: RunningDaemon) -> None:
    one = Serving(folder, "app.py", daemon=fresh_daemon)
    try:
        one.wait_served()
        fresh_daemon.stop()
        assert one.process.wait(60) != 0
        assert "The daemon has exited" in one.said()
        assert "Traceback" not in one.said()
    finally:
        one.close()


SCRIPT = """
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, TypedDict

import pytriton

class Options(TypedDict, total=False):
    upper: Optional[bool]

@dataclass
class Nested:
    options: Optional[Options] = None

def predict(text: str, nested: Optional[Nested] = None) -> str:
    print("worker got", text)
    return "script " + text

if __name__ == "__main__":
    pytriton.serve(predict, port=PORT)
    print("after")
"""


def test_a_script_serves_its_own_function(tmp_path: Path) -> None:
    one = Serving(tmp_path, code=SCRIPT)
    try:
        one.wait_served()
        assert one.call("x") == "script x"
        one.wait_for("  200  ")
        one.interrupt()
        assert one.process.wait(60) == 0
        assert one.said().endswith("after\n")
        assert "Traceback" not in one.said()
    finally:
        one.close()


def test_a_script_uses_the_running_daemon(tmp_path: Path, daemon: RunningDaemon) -> None:
    folder = daemon.config.runtime_dir
    code = SCRIPT.replace("port=PORT", f"model_name='of_script', runtime_dir={folder!r}")
    one = Serving(tmp_path, code=code, daemon=daemon)
    try:
        one.wait_served()
        port = int(daemon.http.rpartition(":")[2])
        assert one.call("x", "/of_script", port) == "script x"
        one.interrupt()
        assert one.process.wait(60) == 0
        assert "of_script" not in [model.name for model in daemon.client.models()]
    finally:
        one.close()


NOTEBOOK = """
import asyncio
import sys
import urllib.request

import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(one) for one in (sys.argv[1], "print('next cell')")]
client = NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3", timeout=120)

def texts(cell):
    return "".join(one.get("text", "") for one in cell.outputs)

async def run():
    async with client.async_setup_kernel():
        running = asyncio.ensure_future(client.async_execute_cell(cells[0], 0))
        while "Press" not in texts(cells[0]):
            await asyncio.sleep(0.1)
            assert not running.done(), cells[0].outputs
        print(texts(cells[0]), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await client.km.interrupt_kernel()
        await running
        await client.async_execute_cell(cells[1], 1)
    print(texts(cells[0]), texts(cells[1]))

asyncio.run(run())
"""


def test_a_notebook_serves_until_its_kernel_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = SCRIPT.replace("from __future__ import annotations", "")
    reader, writer = os.pipe()
    one = Serving(
        tmp_path,
        code=f"import os, sys; os.dup2({reader}, 0); sys.argv[1:] = [{cell!r}]\n{NOTEBOOK}",
        keep=[reader],
    )
    os.close(reader)
    try:
        one.wait_served()
        assert one.call("x") == "script x"
        os.write(writer, b"\n")
        assert one.process.wait(60) == 0, one.said()
        assert "after\n next cell" in one.said()
    finally:
        os.close(writer)
        one.close()


THREAD = SCRIPT.replace(
    "    pytriton.serve(predict, port=PORT)\n",
    "    import sys, threading\n"
    "    threading.Thread(target=pytriton.serve, args=(predict,), kwargs={'port': PORT}, daemon=True).start()\n"
    "    sys.stdin.readline()\n",
)


def test_a_script_may_serve_in_a_thread(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    one = Serving(
        tmp_path,
        code=f"import os; os.dup2({reader}, 0)\n{THREAD}".replace(
            "from __future__ import annotations", ""
        ),
        keep=[reader],
    )
    os.close(reader)
    try:
        one.wait_served()
        assert one.call("x") == "script x"
        for text in ("worker got x", "  200  "):  # or they might be printed at the exit
            one.wait_for(text)
        os.write(writer, b"\n")
        assert one.process.wait(60) == 0, one.said()
        assert one.said().endswith("after\n")
    finally:
        os.close(writer)
        one.close()


@pytest.mark.parametrize(
    ("code", "target", "said"),
    [
        (APP, "app.py:predcit", "has no attribute 'predcit'"),
        (APP + "def other(x: int) -> int: return x\n", "app.py", "defines predict, other"),
        ("X = 1\n", "app.py", "defines no function"),
        ("predict = 1\n", "app.py:predict", "app.py:predict is 1, which cannot be called"),
        ("def predict(x): return x\n", "app.py:predict", "Annotate all its parameters"),
        ("import no_such_module\n", "app.py:predict", "No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", "app.py:predict", "SystemExit: 3"),
        ("import os; os._exit(3)\n", "app.py:predict", "exited with status 3"),
        (APP, "absent.py:predict", "does not exist"),
        (APP, "absent:predict", "module 'absent' not found"),
    ],
)
def test_what_cannot_be_served_is_explained(
    folder: Path, daemon: RunningDaemon, code: str, target: str, said: str
) -> None:
    (folder / "app.py").write_text(code)
    one = Serving(folder, target, daemon=daemon)
    try:
        assert one.process.wait(60) == ExitCode.USAGE
        assert said in one.said()
        assert "importlib" not in one.said()
    finally:
        one.close()


def test_a_taken_port_is_explained(folder: Path) -> None:
    first = Serving(folder, "app.py", "--no-reload")
    try:
        first.wait_served()
        second = Serving(folder, "app.py", "--port", str(first.port))
        try:
            assert second.process.wait(60) != 0
            assert f"port {first.port}" in second.said()
        finally:
            second.close()
    finally:
        first.close()


def test_a_frontend_without_routes_is_explained(folder: Path) -> None:
    with RunningDaemon.start(frontend="triton") as daemon:
        one = Serving(folder, "app.py", daemon=daemon)
        try:
            assert one.process.wait(120) == ExitCode.REGISTRATION_FAILED
            assert "Set frontend to native" in one.said()
            assert daemon.client.models() == []
        finally:
            one.close()
