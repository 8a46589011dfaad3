"""In-process targets: bodies of requests to typed functions, and the descriptions of their routes."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, Union

import msgspec
import numpy as np
import numpy.typing as npt

from fuzz.target import Function
from fuzz.values import Maker
from pytriton._protocol import messages
from pytriton.dispatcher.web_routes import check_route, openapi
from pytriton.model_config import Tensor
from pytriton.typed.bodies import RequestDecoder, ResultEncoder
from pytriton.typed.markers import UploadFile
from pytriton.typed.problems import Problem, problem_document
from pytriton.typed.signature import signature_of


class _Colour(enum.Enum):
    RED = "red"


@dataclass
class _Node:
    value: Union[int, str, None] = None
    children: Optional[list[_Node]] = None


def _scalars(x: int, text: str = "", y: float = 1.5, flag: bool = False) -> Any: ...
def _choices(colour: _Colour, finish: Literal["matt", 3] = 3, data: bytes = b"") -> Any: ...
def _tree(node: _Node) -> Any: ...
def _anything(x: Any, y: Optional[dict[str, Any]] = None) -> Any: ...
def _files(x: UploadFile, text: list[UploadFile], y: Optional[UploadFile] = None) -> Any: ...
def _raw(x: UploadFile) -> Any: ...
def _arrays(
    x: npt.NDArray[np.float32],
    y: Annotated[np.ndarray[Any, Any], Tensor((2, -1), np.int8)],
    text: npt.NDArray[np.bytes_] | None = None,
) -> Any: ...


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    _scalars, _choices, _tree, _anything, _files, _raw, _arrays,
)  # fmt: skip
_NAMES = (
    "x", "y", "text", "flag", "colour", "finish", "data", "node", "value", "children", "red", "matt", "AAAA", "nan", "1e400",
)  # fmt: skip
_FILE_NAMES = (
    "a.png", "../../etc/passwd", "..", ".", "C:\\\\a", "/", "a\\\"b", "a\nb", "a\0b", "\x85", "", "x" * 300, "é",
)  # fmt: skip
_TYPES = (
    "application/json", "multipart/form-data; boundary=X", 'multipart/form-data; boundary="X"', "multipart/form-data",
    "multipart/form-data; boundary=", f"multipart/form-data; boundary={'X' * 71}", "application/x-www-form-urlencoded",
    "application/octet-stream", "", "text/plain", "application/json; charset=utf-16", "APPLICATION/JSON ;x", ";", "a" * 5000,
    "multipart/mixed; boundary=X", "application/problem+json",
)  # fmt: skip
#: Parts of the bodies that forms are damaged with.
_PIECES = (
    b"--X",
    b"--X--",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"Content-Disposition: form-data",
    b'; name="x"',
    b":",
    b"[" * 5000,
)


class TypedBodies(Function):
    """JSON, form and invalid bodies: arguments, or a problem attributed to the client."""

    name = "bodies"
    share = 0.1

    def __init__(self) -> None:
        self._decoders = [RequestDecoder(signature_of(one)) for one in _FUNCTIONS]
        self._encoder = ResultEncoder(Any)

    def case(self, maker: Maker) -> bool:
        maker = Maker(maker.random.randrange(1 << 60), self.name, 0, _NAMES)
        decoder = maker.random.choice(self._decoders)
        content_type = maker.random.choice(_TYPES)
        try:
            arguments = decoder.decode(self._body(maker, content_type), content_type)
        except Problem as problem:
            self._check(problem)
            return False
        for value in [*arguments.args, *arguments.kwargs.values()]:
            files = value if isinstance(value, list) else [value]
            for file in files:
                name = file.filename if isinstance(file, UploadFile) else None
                assert name is None or not {*name} & {*"/\\\0\r\n"}
                assert name not in (".", "..")
            if not any(isinstance(file, UploadFile) for file in files):
                self._encoder.encode(value)
        return True

    @staticmethod
    def _check(problem: Problem) -> None:
        assert problem.status in (400, 413, 415, 422)
        document = problem_document(problem)
        assert len(document.encode()) <= 2000
        assert json.loads(document)["status"] == problem.status

    def _body(self, maker: Maker, content_type: str) -> bytes:
        kind = maker.random.randrange(10)
        if kind == 0:
            return maker.data(200)
        if kind == 1:
            return maker.random.choice((b"[", b'{"x":', b'{"node":{"children":[', b"-")) * 20_000
        if "form-data" in content_type or kind == 2:
            body = b"".join(self._field(maker) for _ in range(self._count(maker))) + b"--X--\r\n"
        elif "urlencoded" in content_type:
            pairs = [f"{maker.text()}={maker.text()}" for _ in range(self._count(maker))]
            body = "&".join(pairs).encode()
        else:
            members = {maker.text(): self._value(maker) for _ in range(maker.random.randrange(5))}
            body = json.dumps(members).encode()
        return maker.damage(body) if maker.chance(3) else body

    @staticmethod
    def _count(maker: Maker) -> int:
        return 1001 if maker.chance(500) else maker.random.randrange(5)

    @staticmethod
    def _field(maker: Maker) -> bytes:
        head = f'--X\r\nContent-Disposition: form-data; name="{maker.text()}"'
        if maker.chance(2):
            head += f'; filename="{maker.random.choice(_FILE_NAMES)}"'
        if maker.chance(4):
            head += f"\r\nContent-Type: {maker.random.choice(_TYPES)}"
        data = maker.text().encode() if maker.chance(2) else json.dumps(maker.integer()).encode()
        field = bytearray(head.encode() + b"\r\n\r\n" + data + b"\r\n")
        if maker.chance(4):
            place = maker.random.randrange(len(field))
            field[place:place] = maker.random.choice(_PIECES)
        return bytes(field)

    def _value(self, maker: Maker, depth: int = 3) -> Any:
        kind = maker.random.randrange(8 if depth else 6)
        if kind == 6:
            return [self._value(maker, depth - 1) for _ in range(maker.random.randrange(4))]
        if kind == 7:
            return {
                maker.text(): self._value(maker, depth - 1)
                for _ in range(maker.random.randrange(4))
            }
        return maker.random.choice(
            (
                None,
                True,
                maker.integer() << maker.random.choice((0, 200)),
                maker.number(),
                maker.text(),
                1,
            )
        )


class RouteDescriptions(Function):
    """Descriptions of routes: refused, or parts of an OpenAPI document that is valid JSON."""

    name = "routes"
    share = 0.05

    def case(self, maker: Maker) -> bool:
        maker = Maker(maker.random.randrange(1 << 60), self.name, 0, ("Item", "/a", "a/b", "$ref"))
        form = maker.of(messages.WebRoute)
        names = [one.encode_name for one in msgspec.structs.fields(messages.WebRoute)]
        members = dict(zip(names, form[-len(names) :])) if isinstance(form, list) else form
        if not maker.chance(4):
            members |= {
                "path": "/a",
                "media_type": "a/b",
                "schemas": {"Item": maker.value(), "B": {}},
            }
            members["operation"] = {"responses": {"200": maker.value()}}
        web = msgspec.convert(members, messages.WebRoute)
        try:
            check_route(web)
        except ValueError:
            return False
        specs = [
            messages.ModelSpec(name, 1, {}, messages.WorkerEnvironment("python"), web=web)
            for name in ("m", "Item")
        ]
        json.loads(json.dumps(openapi(specs), allow_nan=False))
        assert not {*web.media_type} & {*"\r\n"}
        return True
