"""The page at /docs in a real browser: operations are shown, sent and answered, by mouse, keyboard and phone."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.browser import CHROMIUM, Browser, browser
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton import HTTPError, UploadFile

pytestmark = [
    pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here"),
]

HOSTILE = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"


def labels(text: str, top_k: int = 2) -> list[str]:
    """Label a text.

    Args:
        text: what to label
    """
    if text == "missing":
        raise HTTPError(404, "no such text")
    return [text] * top_k


def upload(file: UploadFile, note: str = "") -> dict[str, Any]:
    return {"size": len(file.data)}


def hostile(x: str = HOSTILE) -> str:
    return x


hostile.__doc__ = f"{HOSTILE}\n\n[link](javascript:document.title='ran') {HOSTILE}\n"


@pytest.fixture(scope="module", autouse=True)
def models(daemon: RunningDaemon) -> None:
    for function in (labels, upload, hostile):
        daemon.client.register(function)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def open_page(window: Browser, url: str, operations: int = 3) -> None:
    window.complaints.clear()
    window.open("about:blank")
    window.open(url)
    shown = "document.querySelectorAll('.opblock').length"
    eventually(lambda: window.run(shown) == operations, "the operations are shown")


def of(model: str, selector: str) -> str:
    return f"document.querySelector('#operations-functions-{model} {selector}')"


def click(window: Browser, model: str, selector: str) -> None:
    eventually(lambda: window.run(f"{of(model, selector)} !== null"), f"there is a {selector}")
    window.run(f"{of(model, selector)}.click()")


def response(window: Browser, model: str) -> tuple[str, str]:
    """Return the status and the body that the page shows."""
    status = of(model, ".live-responses-table .response .response-col_status")
    eventually(lambda: window.run(f"{status} !== null"), "a response is shown")
    body = window.run(f"{of(model, '.live-responses-table .microlight')}?.innerText")
    return str(window.run(f"{status}.innerText")).split()[0], str(body)


def _await_example(window: Browser, model: str) -> None:
    filled = f"!!{of(model, 'textarea')}?.value"
    eventually(lambda: window.run(filled), "there is an example of a body")


def execute(window: Browser, model: str) -> tuple[str, str]:
    click(window, model, "button.opblock-summary-control")
    _await_example(window, model)
    click(window, model, "button.execute")
    return response(window, model)


def test_an_operation_is_sent_and_answered(window: Browser, daemon: RunningDaemon) -> None:
    window.resize(1280, 1000)
    open_page(window, f"http://{daemon.http}/docs")
    summary = of("labels", ".opblock-summary-description")
    assert window.run(f"{summary}.innerText") == "Label a text"
    status, body = execute(window, "labels")
    assert (status, json.loads(body)) == ("200", ["string", "string"])
    # React keeps the value itself: it has to be set as a browser does.
    window.run(
        f"const box = {of('labels', 'textarea')};"
        "Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, 'value')"
        '.set.call(box, \'{"text": "missing"}\');'
        "box.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    click(window, "labels", "button.execute")
    eventually(lambda: response(window, "labels")[0] == "404", "the error is shown")
    assert json.loads(response(window, "labels")[1])["detail"] == "no such text"
    assert [one for one in window.complaints if "404" not in one] == []


def test_a_file_can_be_chosen(window: Browser, daemon: RunningDaemon) -> None:
    open_page(window, f"http://{daemon.http}/docs")
    click(window, "upload", "button.opblock-summary-control")
    kinds = of("upload", ".opblock-section-request-body select")
    eventually(lambda: window.run(f"{kinds} !== null"), "the media types are shown")
    window.run(
        f"{kinds}.value = 'multipart/form-data';"
        f"{kinds}.dispatchEvent(new Event('change', {{bubbles: true}}))"
    )
    file = of("upload", "input[type=file]")
    eventually(lambda: window.run(f"{file} !== null"), "a file can be chosen")
    window.run(
        "const chosen = new DataTransfer(); chosen.items.add(new File(['12345'], 'a.bin'));"
        f"{file}.files = chosen.files; {file}.dispatchEvent(new Event('change', {{bubbles: true}}))"
    )
    click(window, "upload", "button.execute")
    assert response(window, "upload") == ("200", '{\n  "size": 5\n}')
    assert window.complaints == []


def test_descriptions_are_text(window: Browser, daemon: RunningDaemon) -> None:
    open_page(window, f"http://{daemon.http}/docs")
    status, body = execute(window, "hostile")
    assert (status, json.loads(body)) == ("200", HOSTILE)
    assert window.run("document.title") == "API of this server"
    scripts = (
        "[...document.querySelectorAll('#api script, #api [onerror], #api a[href^=javascript]')]"
    )
    assert window.run(f"{scripts}.length") == 0


def _focused(window: Browser, what: str) -> bool:
    return bool(window.run(f"document.activeElement?.closest({what!r}) !== null"))


def _tab_to(window: Browser, what: str) -> None:
    for _ in range(60):
        window.press("Tab")
        if _focused(window, what):
            return
    raise AssertionError(f"{what} cannot be reached by the keyboard")


def test_the_page_is_used_by_keyboard(window: Browser, daemon: RunningDaemon) -> None:
    window.resize(1280, 1000)
    open_page(window, f"http://{daemon.http}/docs")
    operation = "#operations-functions-labels"
    _tab_to(window, f"{operation} button.opblock-summary-control")
    window.press("Enter")
    _await_example(window, "labels")
    _tab_to(window, f"{operation} textarea")
    _tab_to(window, f"{operation} button.execute")
    window.press("Enter")
    assert response(window, "labels")[0] == "200"
    assert window.complaints == []
    roles = window.roles()
    assert [role for role, name in roles if role in ("button", "link") and not name] == []


def test_the_page_fits_a_phone(window: Browser, daemon: RunningDaemon) -> None:
    window.resize(390, 844)
    open_page(window, f"http://{daemon.http}/docs")
    assert execute(window, "labels")[0] == "200"
    assert window.run("document.documentElement.scrollWidth") <= 390
    assert window.complaints == []


# ── behind a proxy, and with TLS ─────────────────────────────────────────────────────────────────────

_PREFIX = "/team/models"


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Serves the daemon below a path, as nginx does with `proxy_pass` and `proxy_set_header Host $http_host`."""

    upstream = ""

    def _forward(self) -> None:
        if not self.path.startswith(f"{_PREFIX}/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        client = http.client.HTTPConnection(self.upstream, timeout=60)
        client.request(self.command, self.path[len(_PREFIX) :], body, dict(self.headers))
        answer = client.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.read())
        client.close()

    do_GET = do_POST = _forward

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def test_the_page_behind_a_path_of_a_proxy(window: Browser, daemon: RunningDaemon) -> None:
    handler = type("Handler", (_Proxy,), {"upstream": daemon.http})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            open_page(window, f"http://127.0.0.1:{proxy.server_port}{_PREFIX}/docs")
            status, body = execute(window, "labels")
        finally:
            proxy.shutdown()
            thread.join()
    assert (status, json.loads(body)) == ("200", ["string", "string"])
    assert window.complaints == []


def test_the_page_over_tls(window: Browser, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    files = {"http_certificate": f"{tmp_path}/server.pem", "http_key": f"{tmp_path}/server.key"}
    with RunningDaemon.start(**files) as daemon:
        daemon.client.register(labels)
        window.ignore_certificate_errors()
        open_page(window, f"https://{daemon.http}/docs", operations=1)
        status, body = execute(window, "labels")
    assert (status, json.loads(body)) == ("200", ["string", "string"])
    assert window.complaints == []
