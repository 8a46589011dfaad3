"""The command `call`, which calls a typed function: `pytriton-daemon call predict text=hello image=@cat.jpg`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import RuntimeDirFlag
from pytriton._cli.output import visible
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

if TYPE_CHECKING:
    from pytriton.client import ApiError

#: Where a temporary daemon of `serve` listens by default.
_DEFAULT_URL = "http://127.0.0.1:8000"
_JSON = "application/json"


@command
def call(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model, or its route.")],
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="NAME=VALUE",
            help="Arguments of the function: text, numbers or JSON; NAME=@FILE takes the value from a file. A single - or "
            "@FILE is the whole body.",
        ),
    ] = None,
    url: Annotated[
        Optional[str],
        typer.Option(
            help="Server, such as http://host:8000. Default: the running daemon, or port 8000 of this machine."
        ),
    ] = None,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="Write the response to a file.")
    ] = None,
    timeout: Annotated[
        Optional[float], typer.Option(help="Maximum silence of the server, in seconds.")
    ] = None,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Call a typed function, and print what it returns. A stream is printed item by item."""
    from pytriton._cli import daemon_connection
    from pytriton.client import ApiClient, ApiError
    from pytriton.client.exceptions import PyTritonClientValueError

    token = None
    if url is None:
        rundir = daemon_connection.runtime_dir(runtime_dir)
        url, token = _running_server(rundir)
    try:
        with ApiClient(url, model, timeout_s=timeout, access_token=token) as client:
            route, operation, schemas = _operation(client.openapi(), model, url)
        with ApiClient(url, route, timeout_s=timeout, access_token=token) as client:
            body, given = read_arguments(arguments or (), operation, schemas)
            streams = "text/event-stream" in operation["responses"]["200"]["content"]
            result = client.stream(body, **given) if streams else client(body, **given)
            _write(result, output, streams=streams)
    except (PyTritonClientValueError, ValueError) as error:
        raise CliError(ExitCode.USAGE, str(error)) from None
    except ApiError as error:
        code = ExitCode.USAGE if 400 <= error.status < 500 else ExitCode.ERROR
        raise CliError(code, visible(_text_of(error), keep="\n")) from None
    except (ConnectionError, TimeoutError) as error:
        raise CliError(ExitCode.NO_DAEMON, f"{error}. Is a daemon running?") from None


def _running_server(rundir: RuntimeDir) -> tuple[str, str | None]:
    """Return the URL and the access token of the running daemon; the default URL if none is running."""
    from pytriton._cli import daemon_connection

    if daemon_connection.running_pid(rundir) is None:
        return _DEFAULT_URL, None
    url = daemon_connection.ask_status(rundir).server.http_url
    with suppress(OSError):  # another user's
        return url, rundir.access_token()
    return url, None


def _operation(
    document: Mapping[str, Any], model: str, url: str
) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Return the route of a model, the route's description, and the schemas that the description refers to.

    Raises:
        CliError: there is none
    """
    paths = document["paths"]
    for route, item in paths.items():
        if model in (route, item["post"].get("operationId")):
            return route, item["post"], document.get("components", {}).get("schemas", {})
    known = ", ".join(item["post"].get("operationId", route) for route, item in paths.items())
    raise CliError(
        ExitCode.USAGE,
        f"{url} has no typed function {model!r}; it has: {known}"
        if known
        else f"{url} has no typed functions",
    )


def read_arguments(
    words: Sequence[str], operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Parse the words of a command line. Return the whole body (None if it is not given), and the arguments by name.

    Args:
        words: the words, such as NAME=VALUE
        operation: the description of the function in the OpenAPI document
        schemas: the schemas that the description refers to

    Raises:
        ValueError: a word is malformed, names no parameter, or does not fit its type; or a file cannot be read
    """
    content = operation.get("requestBody", {}).get("content", {})
    schema = _Schema(content.get(_JSON, {}).get("schema", {}), schemas)
    if len(words) == 1 and (words[0] == "-" or (words[0].startswith("@") and "=" not in words[0])):
        data = sys.stdin.buffer.read() if words[0] == "-" else _read(words[0][1:], "the body")
        if any(kind not in (_JSON, "multipart/form-data") for kind in content):
            return data, {}
        return _parsed("the body", data), {}
    given: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        given.setdefault(name, []).append(value)
    members = schema.members()
    unknown = [name for name in given if members is not None and name not in members]
    if unknown:
        raise ValueError(
            f"there is no parameter {', '.join(unknown)}; the parameters are: {', '.join(members or ()) or 'none'}"
        )
    return None, {name: _value(name, texts, schema.member(name)) for name, texts in given.items()}


class _Schema:
    """A JSON schema, with the schemas that it refers to."""

    def __init__(self, schema: Any, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._alternatives = [*self._resolve(schema if isinstance(schema, dict) else {})]

    def _resolve(self, schema: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
        if depth > 20:
            return
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        nested = [self._schemas.get(name, {})] if name else []
        for key in ("anyOf", "oneOf", "allOf"):
            nested += schema.get(key, [])
        if not nested:
            yield schema
        for one in nested:
            yield from self._resolve(one, depth + 1)

    def kinds(self) -> set[str]:
        """Return the JSON types of valid values; empty if any type is valid."""
        found: set[str] = set()
        for one in self._alternatives:
            kinds = one.get("type", [])
            found.update([kinds] if isinstance(kinds, str) else kinds)
            for value in one.get("enum", [one["const"]] if "const" in one else []):
                found.add(_KINDS.get(type(value), "object"))
        return found

    def takes_files(self) -> bool:
        """Return whether the schema describes binary values."""
        return any("contentEncoding" in one for one in self._alternatives)

    def items(self) -> _Schema:
        """Return the schema of an array's items."""
        return _Schema(
            next((one["items"] for one in self._alternatives if "items" in one), {}), self._schemas
        )

    def members(self) -> list[str] | None:
        """Return the names of an object's members; None if it may have others, too."""
        names: list[str] = []
        for one in self._alternatives:
            if "properties" not in one or one.get("additionalProperties", False) is not False:
                return None
            names += one["properties"]
        return names

    def member(self, name: str) -> _Schema:
        """Return the schema of an object's member."""
        for one in self._alternatives:
            if name in one.get("properties", {}):
                return _Schema(one["properties"][name], self._schemas)
        rest = [one.get("additionalProperties") for one in self._alternatives]
        return _Schema(next((one for one in rest if isinstance(one, dict)), {}), self._schemas)


_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}


def _value(name: str, texts: list[str], schema: _Schema) -> Any:
    """Return the value of an argument. Several texts become the items of a list."""
    kinds = schema.kinds()
    is_list = "array" in kinds
    if len(texts) > 1 and not is_list and kinds:
        raise ValueError(f"{name} is given more than once, but takes only one value")
    if len(texts) == 1 and not (is_list and _is_item(texts[0], kinds, schema)):
        return _single(name, texts[0], schema)
    items = schema.items()
    return [_single(name, one, items) for one in texts]


def _is_item(text: str, kinds: set[str], schema: _Schema) -> bool:
    """Return whether a lone argument is one item of the list, rather than the whole list encoded as JSON."""
    if text.startswith("@"):
        return schema.items().takes_files()
    return "string" not in kinds and not text.lstrip().startswith("[")


def _single(name: str, text: str, schema: _Schema) -> Any:
    kinds = schema.kinds()
    if text.startswith("@@"):
        text = text[1:]
    elif text.startswith("@"):
        if schema.takes_files():
            try:
                return open(text[1:], "rb")
            except OSError as error:
                raise ValueError(f"{name}: {text[1:]}: {error.strerror}") from None
        data = _read(text[1:], name)
        if kinds == {"string"}:
            return data.decode(errors="replace")
        return _parsed(name, data)
    if kinds == {"string"} or kinds == {"string", "null"}:
        return text
    if not kinds or "string" in kinds:
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return value if not kinds or _fits(value, kinds - {"string"}) else text
    value = _parsed(name, text, expected=kinds)
    if not _fits(value, kinds):
        raise ValueError(f"{name}: {text!r} is not {_described(kinds)}")
    return value


def _fits(value: Any, kinds: set[str]) -> bool:
    kind = _KINDS.get(type(value), "object")
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _parsed(name: str, data: bytes | str, expected: set[str] | None = None) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        text = data if isinstance(data, str) else f"the content of its file ({error})"
        raise ValueError(
            f"{name}: {text!r} is not {_described(expected) if expected else 'JSON'}"
        ) from None


def _described(kinds: set[str]) -> str:
    words = {"array": "a list in JSON", "object": "an object in JSON", "integer": "a whole number"}
    words |= {"boolean": "true or false", "number": "a number", "null": "null"}
    return " or ".join(words.get(one, one) for one in sorted(kinds))


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: {path}: {error.strerror}") from None


def _text_of(error: ApiError) -> str:
    """Return the text of an error, with a line for each invalid field."""
    problem = error.problem
    first = problem.get("detail") or problem.get("error") or problem.get("title") or ""
    lines = [f"{error.status} {first}"]
    for one in problem.get("errors", ()):
        field = str(one.get("pointer", "")).removeprefix("#/").replace("/", ".") or "the body"
        lines.append(f"  {field}: {one.get('detail', '')}")
    if problem.get("request_id") and "request id" not in lines[0]:
        lines.append(f"  request id: {problem['request_id']}; its traceback is in the model's log")
    return "\n".join(lines)


def _write(result: Any, output: Path | None, *, streams: bool) -> None:
    if streams:
        file = None if output is None else open(output, "w", encoding="utf-8")  # noqa: SIM115
        for item in result:
            text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            typer.echo(visible(text, keep="\n") if _is_terminal(file) else text, file=file)
        if file is not None:
            file.close()
        return
    is_binary = isinstance(result, bytes)
    if is_binary and _is_terminal(output):
        raise CliError(
            ExitCode.USAGE,
            f"the response is {len(result)} bytes of binary data: write it to a file with --output FILE",
        )
    data = result if is_binary else f"{json.dumps(result, indent=2, ensure_ascii=False)}\n".encode()
    if output is not None:
        output.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _is_terminal(output: Any) -> bool:
    return output is None and sys.stdout.isatty()
