"""Settings as text: `start --print-config`, and docs/reference/configuration.md."""

from __future__ import annotations

import json
from typing import Any

from pytriton._host.settings.declarations import (
    ENV_OWNER,
    DaemonConfig,
    env_name,
    flag_name,
    options,
)
from pytriton._host.settings.sources import ENV_CONFIG, FILE_NAME, Loaded
from pytriton._host.settings.triton_options import KNOWN, OURS, REPEATABLE

_MERGED = "tritonserver_options"


def config_as_toml(loaded: Loaded) -> str:
    """Return all settings as a valid settings file, with the source of each as a comment."""
    lines = [f"# settings file: {loaded.file or 'none'}"]
    lines += [
        _line(name, getattr(loaded.config, name), loaded.sources[name])
        for name in options()
        if name != _MERGED
    ]
    lines += ["", f"[{_MERGED}]"]
    lines += [
        _line(key, value, loaded.sources[f"{_MERGED}.{key}"])
        for key, value in loaded.config.tritonserver_options.items()
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, source: str) -> str:
    if value is None:
        return f"# {key} is not set  # {source}"
    if key in options() and options()[key].kind.is_secret:
        return f"# {key} is set; its value is not shown  # {source}"
    return f"{key} = {_toml(value)}  # {source}"


def _toml(value: Any) -> str:
    """Return a value as TOML, whose strings, numbers, booleans and flat lists are the same as JSON's."""
    text = json.dumps(value)
    # DEL is the exception: JSON allows it unescaped.
    return text.replace("\x7f", "\\u007f")


_HEAD = f"""\
# Configuration

`scripts/generate` creates this page from the declarations in `pytriton/_host/settings/declarations.py`; a test fails if it is
out of date.

Every setting can be set in four places. Later ones override earlier ones:

1. its default,
2. the settings file `{FILE_NAME}`,
3. an environment variable,
4. a flag of `pytriton-daemon start`.

`pytriton-daemon start --print-config` prints every setting and its source, and starts
nothing. An unknown name is an error in each of the places, and the message suggests the nearest known
name. A value that is not allowed is an error, too.

## Settings file

The file is the one named by `--config`, else by `${ENV_CONFIG}`, else the first existing one of
`./{FILE_NAME}`, `$XDG_CONFIG_HOME/pytriton-daemon/{FILE_NAME}` (`~/.config` by default) and
`/etc/pytriton-daemon/{FILE_NAME}`. Only one file is read.

```toml
http_port = 9000
response_cache_size = "64MiB"

[{_MERGED}]
log-verbose = 1
trace-config = ["triton,file=/tmp/trace.json", "level=TIMESTAMPS"]
```

A relative path in the file starts from the file's directory; in a variable or flag, from the
working directory. `~` is the home directory.

`connect()` in a Python program does not read the settings file. If the file sets `runtime_dir`,
also set `${env_name("runtime_dir")}` for such programs.

## Environment

The variable of a setting is `{env_name("")}` and its name in capitals. An empty variable counts as
not set. Options of tritonserver are split as a shell would:
`{env_name(_MERGED)}="log-verbose=1 http-thread-count=8"`. Variables that Kubernetes sets for a
Service called `pytriton-daemon` (`{env_name("port")}`, `{env_name("service_host")}` and
so on) are ignored.

`{ENV_OWNER}` is not a setting. It holds a process id: every daemon started below that process exits when the
process exits, for whatever reason. A killed test run then leaves no daemon behind: put `export {ENV_OWNER}=$$` into the
script that runs it.

## Values

- *true or false*: `true`, `yes`, `on`, `1` or `false`, `no`, `off`, `0`, in any case.
- *bytes*: a number, or with a unit: `64MiB` and `1GiB` are powers of 1024, `64MB` and `1.5GB` powers of 1000.
- names ending in `_s`: seconds.

## Settings
"""

_TRITON = """
## Options of tritonserver

`tritonserver_options` accepts any option of tritonserver that the daemon does not set itself,
by its name without dashes. Options from several places are merged; if several set the same option, the
later place wins. Options in **bold** may be repeated: a list in the settings file, or the
flag several times. The list has the options of Triton 2.51 and those that later versions have added; see NVIDIA's
documentation for their meaning. An option that is not listed here is passed to NVIDIA's executable if
your tritonserver lists it in its `--help`. For the native frontend, use `front_limit body_bytes` instead of
`http-max-input-size`.
"""


def configuration_page() -> str:
    """Return docs/reference/configuration.md."""
    parts = [_HEAD]
    parts += [_section(name) for name in options()]
    parts += [_TRITON]
    names = [f"**{name}**" if name in REPEATABLE else f"`{name}`" for name in sorted(KNOWN)]
    parts += [", ".join(names) + ".", "", "The daemon sets these itself:", ""]
    parts += [f"- `{name}`: {instead}." for name, instead in OURS.items()]
    return "\n".join(parts) + "\n"


def _section(name: str) -> str:
    option = options()[name]
    default = _default(name)
    flag = flag_name(name)
    if option.kind.is_switch:
        flag = f"{flag}`, `--no-{flag[2:]}"
    allowed = option.kind.allowed
    default_text = f"Default: {default}. " if default else ""
    return (
        f"### {name}\n\n{option.help}\n\n{default_text}Allowed: {allowed}.\n\n"
        f"Variable `{env_name(name)}`, flag `{flag}`.{_former(option.formerly)}\n"
    )


def _former(name: str) -> str:
    if not name:
        return ""
    return (
        f" Its former names are deprecated and still read: `{name}`, variable `{env_name(name)}`, flag "
        f"`{flag_name(name)}`."
    )


def _default(name: str) -> str:
    """Return a default as text; empty if the help text states it."""
    if name == "runtime_dir":
        return ""
    value = getattr(DaemonConfig(runtime_dir="/"), name)
    return f"`{_toml(value)}`" if value not in (None, {}) else ""
