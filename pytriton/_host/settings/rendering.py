"""Settings as text, for `start --print-config` and docs/reference/configuration.md."""

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
from pytriton._host.settings.sources import ENV_CONFIG, FILE_NAME, LoadedSettings
from pytriton._host.settings.triton_options import KNOWN, OURS, REPEATABLE
from pytriton._protocol import arguments

_MERGED = "tritonserver_options"


def config_as_toml(loaded: LoadedSettings) -> str:
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
    """Return a value as TOML. Its strings, numbers, booleans and flat lists are written as in JSON."""
    text = json.dumps(value)
    # DEL is the exception: JSON allows it unescaped.
    return text.replace("\x7f", "\\u007f")


_HEAD = f"""\
# Configuration

`scripts/generate` creates this page from `pytriton/_host/settings/declarations.py`.

A setting can come from four places. Later ones override earlier ones:

1. its default,
2. the settings file `{FILE_NAME}`,
3. an environment variable,
4. a flag of `pytriton-daemon start`.

`pytriton-daemon start --print-config` prints every setting with its source, and exits. Unknown names and invalid values are
errors.

## Settings file

The daemon reads one file: `--config`, else `${ENV_CONFIG}`, else the first of `./{FILE_NAME}`,
`$XDG_CONFIG_HOME/pytriton-daemon/{FILE_NAME}` (`~/.config` by default) and `/etc/pytriton-daemon/{FILE_NAME}`.

```toml
http_port = 9000
response_cache_size = "64MiB"

[{_MERGED}]
log-verbose = 1
trace-config = ["triton,file=/tmp/trace.json", "level=TIMESTAMPS"]
```

Relative paths in the file are resolved against its directory; in variables and flags, against the working directory. `~` is the home directory.

`connect()` does not read the file. If the file sets `runtime_dir`, also set `${env_name("runtime_dir")}` for Python programs.

## Environment variables

A setting's variable is `{env_name("")}` followed by its name in capitals. Empty variables are ignored, and so are those that
Kubernetes sets for a Service called `pytriton-daemon` (`{env_name("port")}`, `{env_name("service_host")}` and so on). Options
of tritonserver are split as in a shell: `{env_name(_MERGED)}="log-verbose=1 http-thread-count=8"`.

`{ENV_OWNER}` is a process id, not a setting: a daemon started by that process or its descendants exits when that process does. Put `export {ENV_OWNER}=$$`
into scripts that run tests, so that a killed run leaves no daemon behind.

## Values

- boolean: `true`, `yes`, `on` or `1`; `false`, `no`, `off` or `0`; in upper or lower case. Flags: `--allow-http` and `--no-allow-http`.
- number, integer: 0 or more, unless stated otherwise.
- Settings without a default are unset.
- bytes: a number, or a number with a unit, such as `64MiB` or `1.5GB`: MiB and GiB are powers of 1024, MB and GB powers of 1000.
- list: as a flag, repeat it for each value.

## Settings
"""

_TRITON = """
## Options of tritonserver

`tritonserver_options` accepts the options below, by their names without dashes; NVIDIA documents them. If an option is set in several
places, the later place wins. **Bold** ones may be repeated: use a list in the settings file, or repeat the flag. Other options are
passed to NVIDIA's frontend if `tritonserver --help` lists them. With the native frontend, use `frontend_limit body_bytes` instead of
`http-max-input-size`.
"""
#: The kinds of values in fewer words than an error message has.
_KINDS = {
    arguments.ALLOWED: "bytes",
    f"{arguments.ALLOWED}, or a share such as 60%": "bytes, or a share such as 60%",
    "a path": "path",
    "a list in which each value is a path": "list of paths",
    "a word without white space": "word",
    "a list in which each value is a word without white space": "list of words",
    "a number of 0 or more": "number",
    "a whole number of 0 or more": "integer",
    "a whole number of 1 or more": "integer, at least 1",
    "a whole number from 0 to 65535": "port",
}


def configuration_page() -> str:
    """Return the text of docs/reference/configuration.md."""
    parts = [_HEAD]
    parts += [_section(name) for name in options()]
    parts += [_TRITON]
    names = [f"**{name}**" if name in REPEATABLE else f"`{name}`" for name in sorted(KNOWN)]
    parts += [", ".join(names) + ".", "", "The daemon sets these itself:", ""]
    same = [
        name for name, instead in OURS.items() if instead.endswith(f" {name.replace('-', '_')}")
    ]
    parts += [f"- {', '.join(f'`{name}`' for name in same)}: use the setting of the same name."]
    parts += [f"- `{name}`: {instead}." for name, instead in OURS.items() if name not in same]
    return "\n".join(parts) + "\n"


def _section(name: str) -> str:
    option = options()[name]
    default = _default(name)
    flag = flag_name(name)
    allowed = (
        "boolean" if option.kind.is_switch else _KINDS.get(option.kind.allowed, option.kind.allowed)
    )
    default_text = f"; default {default}" if default else ""
    return (
        f"### {name}\n\n{option.help}\n\n`{env_name(name)}`, `{flag}`: {allowed}{default_text}.\n"
    )


def _default(name: str) -> str:
    """Return the default of a setting as text; "" if it has none or its help text states it."""
    if name == "runtime_dir":
        return ""
    value = getattr(DaemonConfig(runtime_dir="/"), name)
    return f"`{_toml(value)}`" if value not in (None, {}) else ""
