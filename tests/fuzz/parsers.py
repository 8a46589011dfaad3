"""In-process targets: everything that parses data from another process, a user or a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzz.target import Function
from fuzz.values import Maker, packed
from pytriton._host.settings import sources
from pytriton._host.settings.declarations import (
    ENV_PREFIX,
    ConfigError,
    DaemonConfig,
    flag_name,
    options,
)
from pytriton._protocol import control, messages, payload
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError


def control_bytes(maker: Maker) -> bytes:
    """Return the bytes of a control message: hostile in one of four ways."""
    kind = maker.random.randrange(8)
    if kind == 0:
        return maker.data()
    if kind == 1:
        return packed(maker.value())
    if kind == 2:
        return packed(maker.slightly_wrong(messages.AnyMessage))
    sound = packed(maker.of(messages.AnyMessage))
    return maker.damage(sound) if kind < 6 else sound


class ControlMessages(Function):
    """Parsing of control messages: MalformedMessage or a message that survives a round trip."""

    name = "messages"
    share = 0.15

    def case(self, maker: Maker) -> bool:
        parts = [maker.data(9) if maker.chance(4) else bytes(8), control_bytes(maker)]
        try:
            _, message, _ = control.parse(parts[: maker.random.choice((0, 1, 2, 2, 2, 2))])
        except messages.MalformedMessage:
            return False
        once = messages.encode(message)
        assert messages.encode(messages.decode(once)) == once
        return True


class Payloads(Function):
    """The header of a pickled callable: MalformedPayload or a header."""

    name = "payloads"
    share = 0.05

    def case(self, maker: Maker) -> bool:
        sound = payload.pack(payload.Header((3, maker.random.randrange(20)), True), maker.data())
        data = maker.data() if maker.chance(4) else maker.damage(sound)
        try:
            header, _ = payload.unpack(data)
        except payload.MalformedPayload:
            return False
        assert len(header.python_version) == 2
        return True


class Strings(Function):
    """The elements of a BYTES tensor: ArenaError or exactly what was sent."""

    name = "strings"
    share = 0.05

    def case(self, maker: Maker) -> bool:
        items = [maker.data(5) for _ in range(maker.random.randrange(4))]
        sound = b"".join(len(item).to_bytes(4, "little") + item for item in items)
        data = sound if maker.chance(3) else maker.damage(sound)
        shape = [len(items)] if maker.chance(2) else maker.of(list[int])
        try:
            array = tensors.decode_bytes(memoryview(data), shape)
        except ArenaError:
            return False
        assert list(array.shape) == shape
        assert tensors.encode_bytes(array) == data
        return True


class Settings(Function):
    """Settings as the daemon process gets them, and from flags and environment: ConfigError or settings."""

    name = "settings"
    share = 0.05

    def __init__(self) -> None:
        self._sound = DaemonConfig(runtime_dir="/r").to_json()
        self._names = list(options())

    def case(self, maker: Maker) -> bool:
        try:
            if maker.chance(3):
                self._from_sources(maker)
            else:
                config = DaemonConfig.from_json(self._json(maker))
                assert DaemonConfig.from_json(config.to_json()) == config
        except ConfigError:
            return False
        return True

    def _json(self, maker: Maker) -> bytes:
        if maker.chance(2):
            return maker.damage(self._sound)
        settings = msgspec.json.decode(self._sound)
        settings[maker.random.choice(self._names)] = maker.value()
        return msgspec.json.encode(settings)

    def _from_sources(self, maker: Maker) -> None:
        flag, variable = (maker.random.choice(self._names) for _ in range(2))
        environment = {ENV_PREFIX + variable.upper(): maker.text().replace("\0", "")}
        assert flag_name(flag)
        sources.load({flag: maker.text()}, environment, Path("/"))
