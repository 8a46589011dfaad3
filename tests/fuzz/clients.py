"""The target that is a hostile client: invalid texts in every text field of HTTP and gRPC.

Each round sends some hostile requests and, concurrently to the same models, twice as many innocent ones, which
tritonserver puts into the same batches. Whatever becomes of the hostile requests, the innocent ones get correct
responses.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import grpc
from tritonclient.grpc import service_pb2

from fuzz.target import Finding, Tally, Target
from fuzz.target_daemon import TEXTS, TargetDaemon
from fuzz.values import Maker

#: Hostile requests of a round.
_ABREAST = 4
_ANSWER_S = 60.0
_UNARY = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
#: Stands where a hostile text is put: protobuf itself would not take that.
_PLACE = "Q"
#: No UTF-8, each in its way: alone, cut off, overlong, a surrogate, beyond the last character.
_BROKEN = (
    b"\xff\xfe", b"\x80", b"a\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80",
    b"\xed\xb0\x80\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xfe", b"x" * 300 + b"\xff", b"\xff" * 70_000,
)  # fmt: skip
#: Sound, and yet not what everybody expects; some mean something to tritonserver or to us.
_SOUND = (
    b"", b"x", "é✗😀".encode(), b"a b", b"\xef\xbf\xbd", b"\xe2\x80\xae", b"pytriton_calls", b"pytriton_waiting",
    b"pytriton_version", b"pytriton_mended", b"pytriton_not_calls", b"sequence_start", b"x" * 5000, b"%s%n", b"\\u0000",
    b"\\ud800", b"\\", b'"', b"\n", b"}", b"null", b"1:2:3", b"[[]]", b"NaN",
)  # fmt: skip


class Answer(NamedTuple):
    """The response, and whether it `refused` the request in an orderly way."""

    ok: bool
    unavailable: bool
    body: bytes


Send = Callable[[], Answer]


class HostileClients(Target):
    """Requests of hostile clients, and of innocent ones in the same batches."""

    name = "clients"
    share = 0.05
    block = 1_000

    def __init__(self, target_daemon: TargetDaemon) -> None:
        self._target_daemon = target_daemon
        host, _, port = target_daemon.daemon.http.rpartition(":")
        self._http = (host, int(port))
        self._channel = grpc.insecure_channel(target_daemon.daemon.grpc)
        self._unary = self._channel.unary_unary(_UNARY)
        self._stream = self._channel.stream_stream(_STREAM)
        self._threads = ThreadPoolExecutor(3 * _ABREAST)
        self._number = 0

    def run(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        """Run the cases, several at a time."""
        for start in range(0, len(cases), _ABREAST):
            self._round(seed, cases[start : start + _ABREAST], tally)

    def check(self) -> None:
        """Check that workers and models are unchanged, and that no lane was lost.

        Raises:
            Finding: they are not
        """
        self._target_daemon.check()
        if "closed a lane" in self._target_daemon.daemon.said():
            raise Finding("a worker has dropped a lane")

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        self._channel.close()

    def _round(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        hostile: list[tuple[int, Future[Answer]]] = []
        innocent: list[tuple[bytes, Future[Answer]]] = []
        for case in cases:
            maker = Maker(seed, self.name, case)
            model = maker.random.choice(TEXTS)
            hostile.append((case, self._threads.submit(self._hostile(maker, model))))
            for over in (self._innocent_http, self._innocent_grpc):
                self._number += 1
                text = b"innocent %d" % self._number
                innocent.append((text, self._threads.submit(over(model, text))))
        for text, future in innocent:
            answer = future.result()
            if not answer.ok or text + b"!" not in answer.body:
                raise Finding(f"{text!r} was answered {answer.body[:500]!r}", cases)
        for case, sent in hostile:
            answer = sent.result()
            if answer.unavailable:
                raise Finding(
                    f"a request made its model unavailable: {answer.body[:500]!r}", [case]
                )
            tally.add(answer.ok)

    # ── who means well ───────────────────────────────────────────────────────────────────────────

    def _innocent_http(self, model: str, text: bytes) -> Send:
        if "stream" in model:
            body = b'{"s":"%s","a":"\xc3\xa9"}' % text
            return lambda: self._post(f"/v2/models/{model}/generate_stream".encode(), [], body)
        body = _json(_tensor(b"s", text), b'"id":"1","parameters":{"a":"\xc3\xa9"}')
        return lambda: self._post(f"/v2/models/{model}/infer".encode(), [], body)

    def _innocent_grpc(self, model: str, text: bytes) -> Send:
        request = _request(model)
        request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
        data = request.SerializeToString()
        return lambda: self._call("stream" in model, data, [])

    # ── who does not ─────────────────────────────────────────────────────────────────────────────

    def _hostile(self, maker: Maker, model: str) -> Send:
        if maker.chance(3):
            return self._hostile_grpc(maker, model)
        if maker.chance(4) or ("stream" in model and not maker.chance(4)):
            return self._hostile_generate(maker, model)
        return self._hostile_infer(maker, model)

    def _hostile_infer(self, maker: Maker, model: str) -> Send:
        path = f"/v2/models/{model}/infer".encode()
        headers = [(b"Content-Type", b"application/json")]
        field = maker.random.choice(
            ["member", "name", "element", "header", "version", "model", "binary"]
        )
        if field == "binary":
            return self._hostile_binary(maker, path)
        name = _text(maker) if field == "name" else b"s"
        element = _text(maker) if field == "element" else b"x"
        member = _member(maker) if field == "member" else b""
        if field == "header":
            headers.append((_name(maker), _header(maker)))
        elif field == "version":
            path = b"/v2/models/%s/versions/%s/infer" % (model.encode(), _path(maker))
        elif field == "model":
            path = b"/v2/models/%s/infer" % _path(maker)
        body = _json(_tensor(name, element), member)
        return lambda: self._post(path, headers, body)

    def _hostile_binary(self, maker: Maker, path: bytes) -> Send:
        """Return a request whose string is malformed, or has arbitrary bytes."""
        data = _serialized(maker)
        size = len(data) if not maker.chance(4) else maker.random.randrange(40)
        tensor = (
            b'{"name":"s","shape":[1,1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}'
        )
        head = _json(tensor % size, b"")
        headers = [(b"Inference-Header-Content-Length", b"%d" % len(head))]
        return lambda: self._post(path, headers, head + data)

    def _hostile_generate(self, maker: Maker, model: str) -> Send:
        endpoint = "generate_stream" if "stream" in model else "generate"
        path = f"/v2/models/{model}/{endpoint}".encode()
        pairs = [b'"s":"%s"' % (_text(maker) if maker.chance(3) else b"x")]
        for _ in range(maker.random.randrange(3)):
            key = (
                _text(maker)
                if maker.chance(2)
                else maker.random.choice([b"id", b"a", b"parameters"])
            )
            pairs.append(b'"%s":%s' % (key, _value(maker)))
        maker.random.shuffle(pairs)
        body = b"{" + b",".join(pairs) + b"}"
        headers = [(_name(maker), _header(maker))] if maker.chance(3) else []
        return lambda: self._post(path, headers, body)

    def _hostile_grpc(self, maker: Maker, model: str) -> Send:
        hostile = _text(maker) or b"\xff"
        place = _PLACE * len(hostile)
        request = _request(model)
        metadata: list[tuple[str, str | bytes]] = []
        data = b"\1\0\0\0x"
        field = maker.random.randrange(9)
        if field == 0:
            request.id = place
        elif field == 1:
            request.parameters[place].string_param = "b"
        elif field == 2:
            request.parameters["a"].string_param = place
        elif field == 3:
            request.parameters["sequence_id"].string_param = place
        elif field == 4:
            request.outputs.add(name=place).parameters[place].int64_param = 1
        elif field == 5:
            request.inputs[0].name = place
        elif field == 6:
            request.inputs[0].datatype = place
        elif field == 7:
            metadata.append(("x-any-bin", hostile[:4000]))
        else:
            data = _serialized(maker)
        if maker.chance(5):
            request.parameters["number"].double_param = maker.number()
        request.raw_input_contents.append(data)
        sent = request.SerializeToString().replace(place.encode(), hostile)
        return lambda: self._call("stream" in model, sent, metadata)

    # ── the wires ────────────────────────────────────────────────────────────────────────────────

    def _post(self, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        """Send bytes unchanged on a new connection; read until tritonserver closes it."""
        lines = [b"POST %s HTTP/1.1" % path, b"Host: fuzz", b"Connection: close"]
        lines += [
            b"Content-Length: %d" % len(body),
            *(b"%s: %s" % pair for pair in headers),
            b"",
            b"",
        ]
        answer = b""
        with socket.create_connection(self._http, _ANSWER_S) as connection:
            try:
                connection.sendall(b"\r\n".join(lines) + body)
                while data := connection.recv(1 << 16):
                    answer += data
            except ConnectionError:  # it had enough of what it read
                return Answer(False, False, answer)
            except socket.timeout:
                return Answer(False, True, b"no answer in time; so far: " + answer)
        status = answer.split(b" ", 2)[1:2]
        return Answer(status == [b"200"], status == [b"503"], answer)

    def _call(self, stream: bool, data: bytes, metadata: list[tuple[str, str | bytes]]) -> Answer:
        try:
            if stream:
                answers = self._stream(iter([data]), timeout=_ANSWER_S, metadata=metadata)
                body = b"".join(answers)
                return Answer(b"!" in body, b"closed its lane" in body, body)
            return Answer(True, False, self._unary(data, timeout=_ANSWER_S, metadata=metadata))
        except grpc.RpcError as error:
            bad = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            return Answer(False, error.code() in bad, f"{error.code()} {error.details()}".encode())


def _request(model: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="s", datatype="BYTES", shape=[1, 1])
    return request


def _tensor(name: bytes, element: bytes) -> bytes:
    return b'{"name":"%s","shape":[1,1],"datatype":"BYTES","data":["%s"]}' % (name, element)


def _json(tensor: bytes, more: bytes) -> bytes:
    return b'{"inputs":[%s]%s%s}' % (tensor, b"," if more else b"", more)


def _text(maker: Maker) -> bytes:
    """Return a text to put between quotes, usually invalid UTF-8."""
    if not maker.chance(3):
        return maker.random.choice(_BROKEN)
    return maker.random.choice(_SOUND) if not maker.chance(3) else maker.data(30)


def _member(maker: Maker) -> bytes:
    """Return a member of a request besides its inputs."""
    output = maker.random.choice([b"t", _text(maker)])
    members = [
        b'"id":"%s"' % _text(maker),
        b'"parameters":{"%s":%s}' % (_text(maker), _value(maker)),
        b'"parameters":{"a":%s,"%s":1}' % (_value(maker), _text(maker)),
        b'"parameters":{"sequence_id":"%s","sequence_start":true}' % _text(maker),
        b'"outputs":[{"name":"%s","parameters":{"%s":1}}]' % (output, _text(maker)),
    ]
    return maker.random.choice(members)


def _value(maker: Maker) -> bytes:
    """Return the value of a parameter."""
    if not maker.chance(3):
        return b'"%s"' % _text(maker)
    simple = [
        b"1",
        b"-1",
        b"1.5",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"true",
        b"null",
        b"9223372036854775807",
    ]
    return maker.random.choice(
        [*simple, b"1e300", b"18446744073709551615", b"[]", b"{}", b'["\xff"]']
    )


def _name(maker: Maker) -> bytes:
    """Return the name of a header: one that tritonserver reads, or forwards as a parameter."""
    names = [
        b"X-Any",
        b"x-%s" % _one_line(_text(maker))[:50],
        b"traceparent",
        b"tracestate",
        b"baggage",
    ]
    return maker.random.choice([*names, b"Content-Type", b"triton-request-id", b"Accept-Encoding"])


def _header(maker: Maker) -> bytes:
    traced = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return maker.random.choice(
        [_one_line(_text(maker))[:4000], traced, b"a=" + _one_line(_text(maker))[:100]]
    )


def _path(maker: Maker) -> bytes:
    """Return a segment of a path."""
    text = _one_line(_text(maker))[:200].replace(b" ", b"+")
    return text if maker.chance(2) else b"".join(b"%%%02x" % byte for byte in text)


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\r", b"").replace(b"\n", b"")


def _serialized(maker: Maker) -> bytes:
    """Return a string of a BYTES tensor with its length, or with a wrong one."""
    text = _text(maker)[:2000]
    length = len(text) if maker.chance(3) else abs(maker.integer()) % (1 << 32)
    return length.to_bytes(4, "little") + text
