"""The declarations of settings, wherever they stand: each is complete, in one order, and allows its own default."""

from __future__ import annotations

import pytest

from pytriton._host.settings import parsing
from pytriton._host.settings.declarations import (
    DaemonConfig,
    FrontendSettings,
    PlaceSettings,
    ServerSettings,
    options,
)
from pytriton._host.settings.option import PORT, SECONDS, Option


def test_the_files_declare_one_list_of_settings() -> None:
    """Each goes on where the one below it ends, and each setting has its help and what is allowed."""
    parts = [
        one.__struct_fields__
        for one in (PlaceSettings, FrontendSettings, ServerSettings, DaemonConfig)
    ]
    for lower, upper in zip(parts, parts[1:]):
        assert upper[: len(lower)] == lower
        assert len(upper) > len(lower)
    assert tuple(options()) == parts[-1]
    for name, option in options().items():
        assert option.help.endswith("."), name
        assert option.kind.allowed, name


@pytest.mark.parametrize("name", DaemonConfig.__struct_fields__)
def test_a_default_is_a_value_that_is_allowed(name: str) -> None:
    options()[name].check(name, getattr(DaemonConfig(), name))


@pytest.mark.parametrize(
    ("kind", "value", "reported"),
    [
        (PORT, 65536, "^http_port: .*65535"),
        (PORT, -1, "^http_port: .*0"),
        (PORT, "eighty", "^http_port: "),
        (SECONDS, -0.5, "^http_port: "),
        (parsing.choice("a", "b"), "c", "^http_port: .*a.*b"),
    ],
)
def test_a_value_that_is_not_allowed_is_reported_with_the_setting(
    kind: parsing.Kind, value: object, reported: str
) -> None:
    with pytest.raises(ValueError, match=reported):
        Option("Help.", kind).check("http_port", value)


def test_a_setting_that_a_lower_file_declares_is_checked_like_any_other() -> None:
    with pytest.raises(ValueError, match="http_port"):
        DaemonConfig(http_port=70000)
    with pytest.raises(ValueError, match="repository_poll_s"):
        DaemonConfig(repository_poll_s=-1.0)
    with pytest.raises(TypeError, match="no_such_setting"):
        DaemonConfig(no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        DaemonConfig().http_port = 1  # type: ignore[misc]
