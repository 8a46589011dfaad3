"""Loads the settings from their sources: defaults, settings file, environment, flags. Later sources take precedence.

`load` reads only the settings file; the caller passes flags and environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytriton._host.settings.declarations import (
    ENV_OWNER,
    ENV_PREFIX,
    ConfigError,
    DaemonConfig,
    env_name,
    flag_name,
    options,
)
from pytriton._host.settings.parsing import MIN_SECRET_LENGTH, nearest, toml_table
from pytriton._protocol.files.rundir import clients_runtime_dir

FILE_NAME = "pytriton-daemon.toml"
#: Names the settings file; not a setting itself.
ENV_CONFIG = f"{ENV_PREFIX}CONFIG"
_NO_SETTINGS = (ENV_CONFIG, ENV_OWNER)
#: Variables that Kubernetes sets in every pod for a Service called pytriton-daemon.
_KUBERNETES = re.compile(
    rf"{ENV_PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_MERGED = "tritonserver_options"


@dataclass(frozen=True)
class LoadedSettings:
    """The settings, and the source of each."""

    config: DaemonConfig
    #: Setting -> "default", "file PATH", "environment NAME" or "flag --NAME". Each option
    #: of tritonserver has its own entry: "tritonserver_options.NAME".
    sources: Mapping[str, str]
    file: Path | None  #: the settings file that was read


@dataclass
class _Draft:
    """The values read so far, from the sources in order of increasing precedence, and the problems found."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def set(self, name: str, raw: object, where: str, source: str, base: Path) -> None:
        """Parse and add one value. `where` names it in error messages. Relative paths in it are resolved against
        `base`.
        """
        kind = options()[name].kind
        try:
            value = kind.read(raw)
            if kind.is_secret and value is not None and len(value) < MIN_SECRET_LENGTH:
                raise kind.refusal(raw)
        except ValueError as error:
            self.problems.append(f"{where}: {error}")
            return
        self.sources[name] = source
        if name == _MERGED:
            self.values[name] = {**self.values.get(name, {}), **value}
            self.sources.update({f"{name}.{key}": source for key in value})
        else:
            self.values[name] = kind.resolve_paths(value, base)


def load(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    cwd: Path | None = None,
    file: str | None = None,
) -> LoadedSettings:
    """Load the settings from all sources.

    Args:
        flags: name of a setting -> text or value; None means that the flag was not given.
        env: the environment; an empty variable counts as not set.
        cwd: the directory where relative paths start, and the first one searched for a settings file.
        file: the settings file to read (`--config`); without one, the default locations are searched.

    Raises:
        ConfigError: settings are invalid. The text lists all problems, one per line: source, key, allowed values.
    """
    cwd = (cwd or Path.cwd()).absolute()
    draft = _Draft()
    path = _settings_file(file, env, cwd)
    if path is not None:
        _read_file(path, draft)
    _read_env(env, cwd, draft)
    _read_flags(flags, cwd, draft)
    if not draft.problems:
        try:
            config = DaemonConfig(**draft.values)
        except ValueError as error:
            draft.problems.append(_with_sources(str(error), draft))
        else:
            sources = {name: draft.sources.get(name, "default") for name in options()}
            return LoadedSettings(config, {**sources, **draft.sources}, path)
    raise ConfigError("\n".join(draft.problems))


def _with_sources(problem: str, draft: _Draft) -> str:
    named = [name for name in options() if re.search(rf"\b{name}\b", problem)]
    origins = ", ".join(f"{name}: {draft.sources.get(name, 'default')}" for name in named)
    return f"{problem} ({origins})" if origins else problem


def searched_files(env: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return the default locations of the settings file, in search order."""
    home = env.get("XDG_CONFIG_HOME") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".config"
    )
    folders = [cwd, Path(home, "pytriton-daemon"), Path("/etc/pytriton-daemon")]
    return [folder / FILE_NAME for folder in folders]


def _settings_file(file: str | None, env: Mapping[str, str], cwd: Path) -> Path | None:
    for named, by in ((file, "--config"), (env.get(ENV_CONFIG), ENV_CONFIG)):
        if named:
            path = cwd / Path(named).expanduser()
            if not path.exists():
                raise ConfigError(f"{by} names the settings file {path}, which does not exist")
            return path
    # isfile() is False for directories that this process may not enter, such as a service's with ProtectHome=.
    return next((path for path in searched_files(env, cwd) if os.path.isfile(path)), None)


def _read_file(path: Path, draft: _Draft) -> None:
    try:
        table = toml_table(path)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"the settings file {path} is not TOML: {error}") from error
    for key, raw in table.items():
        where = f"file {path}, key {key}"
        if key in options():
            draft.set(key, raw, where, f"file {path}", path.parent)
        else:
            draft.problems.append(f"{where}: there is no such setting{nearest(key, options())}")


def _read_env(env: Mapping[str, str], cwd: Path, draft: _Draft) -> None:
    names = {env_name(name): name for name in options()}
    for variable, text in sorted(env.items()):
        if not variable.startswith(ENV_PREFIX) or variable in _NO_SETTINGS or not text:
            continue
        if variable in names:
            source = f"environment {variable}"
            draft.set(names[variable], text, source, source, cwd)
        elif not _KUBERNETES.fullmatch(variable):
            hint = nearest(variable, names)
            draft.problems.append(f"environment {variable}: there is no such setting{hint}")


def _read_flags(flags: Mapping[str, object], cwd: Path, draft: _Draft) -> None:
    for name, raw in flags.items():
        if raw is None or raw == [] or raw == ():
            continue
        source = f"flag {flag_name(name)}"
        if name in options():
            draft.set(name, raw, source, source, cwd)
        else:
            hint = nearest(source, _flags(options()))
            draft.problems.append(f"{source}: there is no such setting{hint}")


def _flags(names: Iterable[str]) -> list[str]:
    return [f"flag {flag_name(name)}" for name in names]


def find_runtime_dir(flag: Path | None, env: Mapping[str, str], cwd: Path) -> Path:
    """Return the runtime directory, for commands that need no other setting.

    Invalid values of other settings are ignored, so that a daemon can be stopped despite them.

    Raises:
        ConfigError: the settings file cannot be read, or its runtime_dir is not a path.
    """
    name = "runtime_dir"
    variable = env.get(env_name(name))
    if flag is not None or variable:
        return cwd / Path(flag or variable or "").expanduser()
    path = _settings_file(None, env, cwd)
    if path is not None:
        draft = _Draft()
        _read_file(path, draft)
        wrong = [text for text in draft.problems if f"key {name}:" in text]
        if wrong:
            raise ConfigError("\n".join(wrong))
        if name in draft.values:
            return Path(draft.values[name])
    return clients_runtime_dir()
