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
    """Return every setting and, as a comment, its source: a settings file, ready to be used."""
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
        return f"# {key} is set, and not shown here  # {source}"
    return f"{key} = {_toml(value)}  # {source}"


def _toml(value: Any) -> str:
    """Return a value as TOML, whose strings, numbers, booleans and flat lists are JSON's."""
    text = json.dumps(value)
    # Except for DEL, which JSON may hold as it is.
    return text.replace("\x7f", "\\u007f")


_HEAD = f"""\
# Configuration

`scripts/generate` makes this page of the declarations in `pytriton/_host/settings/declarations.py`; a test fails when it is
out of date.

Every setting can stand in four places. A later one wins over an earlier one:

1. its default,
2. the settings file `{FILE_NAME}`,
3. an environment variable,
4. a flag of `pytriton-daemon start`.

`pytriton-daemon start --print-config` prints every setting with the place it comes from, and starts
nothing. A name that does not exist is an error in each of the places, which tells the nearest name
that does, and so is a value that is not allowed.

## Settings file

The file is the one named by `--config`, else by `${ENV_CONFIG}`, else the first that exists of
`./{FILE_NAME}`, `$XDG_CONFIG_HOME/pytriton-daemon/{FILE_NAME}` (`~/.config` by default) and
`/etc/pytriton-daemon/{FILE_NAME}`. Only one file is read.

```toml
http_port = 9000
response_cache_size = "64MiB"

[{_MERGED}]
log-verbose = 1
trace-config = ["triton,file=/tmp/trace.json", "level=TIMESTAMPS"]
```

A relative path in the file is meant from the file's folder; in a variable or flag, from the
working directory. `~` is the home folder.

`connect()` in a Python program does not read the settings file: when `runtime_dir` is set there,
tell programs with `${env_name("runtime_dir")}`, too.

## Environment

The variable of a setting is `{env_name("")}` and its name in capitals; one that is empty counts as
not set. Options of tritonserver are written as a shell would split them:
`{env_name(_MERGED)}="log-verbose=1 http-thread-count=8"`. Variables that Kubernetes sets for a
Service called `pytriton-daemon` (`{env_name("port")}`, `{env_name("service_host")}` and
so on) are passed over.

`{ENV_OWNER}` is no setting: it names a process, and every daemon that is started below that process ends with
it, however it ends. A test run that is killed then leaves no daemon: `export {ENV_OWNER}=$$` in the
script that runs it.

## Values

- *true or false*: `true`, `yes`, `on`, `1` or `false`, `no`, `off`, `0`, in any case.
- *bytes*: a number, or with a unit: `64MiB` and `1GiB` count in 1024, `64MB` and `1.5GB` in 1000.
- names ending in `_s`: seconds.

## Settings
"""

_TRITON = """
## Options of tritonserver

Any option of tritonserver that the daemon does not set itself can stand in `tritonserver_options`,
by its name without dashes. Options from several places are put together; of the same option the
later place wins. Those in **bold** may be given several times: a list in the settings file, or the
flag repeated. They are the options of Triton 2.51 and what later versions have added; see NVIDIA's
documentation for what each does. An option that is not listed here is handed to NVIDIA's executable, if a
tritonserver of yours says with `--help` that it has that option. For the native front,
`http-max-input-size` is `front_limit body_bytes`.
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
    told = f"Default: {default}. " if default else ""
    return (
        f"### {name}\n\n{option.help}\n\n{told}Allowed: {allowed}.\n\n"
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
    """Return a default as it is written; nothing where the help text tells it."""
    if name == "runtime_dir":
        return ""
    value = getattr(DaemonConfig(runtime_dir="/"), name)
    return f"`{_toml(value)}`" if value not in (None, {}) else ""
