"""Generate proxy_backend/frontend/protobuf/messages.{h,c}, the messages and methods of KServe's gRPC protocol as tables.

They come from the descriptors in tritonclient (grpc_service.proto and model_config.proto of KServe v2 with Triton's
extensions). tritonclient lacks the two messages of grpc.health.v1, which are declared here:
https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from tritonclient.grpc import service_pb2

_FOLDER = Path("proxy_backend/frontend/protobuf")
HEADER, SOURCE = _FOLDER / "messages.h", _FOLDER / "messages.c"
#: FieldDescriptorProto.Type -> ProtoType of protobuf.h.
_TYPES = {
    1: "DOUBLE", 2: "FLOAT", 3: "INT64", 4: "UINT64", 5: "INT32", 8: "BOOL", 9: "STRING", 11: "MESSAGE", 12: "BYTES",
    13: "UINT32", 14: "ENUM",
}  # fmt: skip
_HEAD = """/* Written by scripts/generate from the descriptors of KServe's gRPC protocol: do not edit. */
/* clang-format off */
"""


def files() -> dict[Path, str]:
    """Return the text of each file."""
    services = [service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"], _health()]
    messages = list(_reachable(services))
    return {HEADER: _header(services, messages), SOURCE: _source(messages)}


def _health() -> Any:
    """Return the descriptor of grpc.health.v1.Health."""
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package="grpc.health.v1")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=9, label=1)
    response = file.message_type.add(name="HealthCheckResponse")
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        type=14,
        label=1,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
    )
    service = file.service.add(name="Health")
    for name, streams in (("Check", False), ("Watch", True)):
        service.method.add(
            name=name,
            input_type=".grpc.health.v1.HealthCheckRequest",
            output_type=".grpc.health.v1.HealthCheckResponse",
            server_streaming=streams,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindServiceByName("grpc.health.v1.Health")


def _reachable(services: list[Any]) -> Iterator[Any]:
    """Yield each message once, after the messages in its fields."""
    seen: set[str] = set()

    def walk(message: Any) -> Iterator[Any]:
        if message.full_name in seen:
            return
        seen.add(message.full_name)
        for field in message.fields:
            if field.message_type is not None:
                yield from walk(field.message_type)
        yield message

    for service in services:
        for method in service.methods:
            yield from walk(method.input_type)
            yield from walk(method.output_type)


def _upper(descriptor: Any) -> str:
    """Return the name in C, such as MODEL_CONFIG_INPUT_ENTRY for inference.ModelConfig.InputEntry."""
    name = descriptor.full_name.removeprefix(descriptor.file.package + ".")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\.", "_", name)
    return str(words.upper())


def _header(services: list[Any], messages: list[Any]) -> str:
    lines = [
        _HEAD
        + "#ifndef PYTRITON_FRONTEND_PROTOBUF_MESSAGES_H\n#define PYTRITON_FRONTEND_PROTOBUF_MESSAGES_H\n"
    ]
    lines += [
        '#include "protobuf/protobuf.h"\n',
        "/* X(name, path, request, answer, client streams, server streams) */",
    ]
    rows = [
        f'    X({re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).upper()}, "/{service.full_name}/{method.name}", '
        f"{_upper(method.input_type)}, {_upper(method.output_type)}, "
        f"{int(method.client_streaming)}, {int(method.server_streaming)})"
        for service in services
        for method in service.methods
    ]
    lines += ["#define GRPC_METHODS(X) \\", " \\\n".join(rows), ""]
    for message in messages:
        name = _upper(message)
        lines.append(f"extern const ProtoMessage {name};")
        numbers = [f"{name}_{field.name} = {field.number}" for field in message.fields]
        if numbers:
            lines.append("enum { " + ", ".join(numbers) + " };")
    return "\n".join([*lines, "", "#endif", ""])


def _source(messages: list[Any]) -> str:
    lines = [_HEAD, '#include "protobuf/messages.h"', ""]
    for enum in sorted(_enums(messages), key=_upper):
        values = ", ".join(f'{{{value.number}, "{value.name}"}}' for value in enum.values)
        lines.append(
            f"static const ProtoEnumValue {_upper(enum)}_VALUES[] = {{{values}, {{0, NULL}}}};"
        )
    lines.append("")
    for message in messages:
        name = _upper(message)
        rows = [_field(field) for field in sorted(message.fields, key=lambda one: one.number)]
        if rows:
            lines += [f"static const ProtoField {name}_FIELDS[] = {{", *rows, "};"]
        fields = f"{name}_FIELDS" if rows else "NULL"
        lines.append(
            f'const ProtoMessage {name} = {{"{message.full_name}", {fields}, {len(rows)}}};'
        )
    return "\n".join([*lines, ""])


def _enums(messages: list[Any]) -> list[Any]:
    found = {
        field.enum_type.full_name: field.enum_type
        for message in messages
        for field in message.fields
        if field.enum_type is not None
    }
    return list(found.values())


def _field(field: Any) -> str:
    inner = field.message_type
    repeated = _is_repeated(field)
    form = "SINGULAR"
    if repeated:
        form = "MAP" if inner is not None and inner.GetOptions().map_entry else "REPEATED"
    elif field.has_presence:
        form = "OPTIONAL"
    message = f"&{_upper(inner)}" if inner is not None else "NULL"
    values = f"{_upper(field.enum_type)}_VALUES" if field.enum_type is not None else "NULL"
    return f'    {{{field.number}, PROTO_{_TYPES[field.type]}, PROTO_{form}, "{field.name}", {message}, {values}}},'


def _is_repeated(field: Any) -> bool:
    """Return whether a field is repeated. `label` is deprecated, but older versions of protobuf have only that."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == 3)
