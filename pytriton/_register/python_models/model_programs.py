"""The message that registers a Triton Python model, built from its folder or its class.

folder ──▶ config.pbtxt ──▶ auto_complete_config ──▶ configuration for tritonserver (model_dir.py)
                 │                              └──▶ configuration for `initialize`
                 └──▶ EXECUTION_ENV_PATH ──▶ the workers' interpreter (environments.py)
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Union

from pytriton._control.connection import Report, step_reporter
from pytriton._protocol import messages, trace_config
from pytriton._protocol.arguments import with_article
from pytriton._protocol.payload import Header, pack
from pytriton._register import environments
from pytriton._register.environment import (
    WorkerModules,
    capture_environment,
    find_interpreter,
    own_interpreter,
    warn_of_missing,
)
from pytriton._register.python_models import model_dir
from pytriton.autoscale import autoscale_in, autoscale_of
from pytriton.declaration import validate_model_name
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats import table
from pytriton.run_options import (
    RegisterModelOptions,
    RegisterOptions,
    check_names,
    count_instances,
    default_lanes,
    device_list,
    merge_options,
    names_of,
    spec_fields,
)

#: A model's folder in a repository, or its class.
ModelSource = Union[str, "os.PathLike[str]", type]
#: A file, its text, or the configuration's JSON form.
ConfigSource = Union[str, "os.PathLike[str]", Mapping[str, Any], None]

#: A name that occurs in the code of every model that answers after `execute` has returned.
_STREAM_NAMES = re.compile(r"\b(get_response_sender|is_cancelled|MetricFamily|set_release_flags)\b")
_LIBRARY = Path(__file__).parents[2]  # the package pytriton
#: Number of trailing characters of output to show if the process exited without an answer.
_MAX_SHOWN = 4000


@dataclass(frozen=True)
class _ProgramSource:
    """The source of a model: `folder` or `cls`, and its Python code, as far as it can be read."""

    folder: Path | None
    cls: type | None
    text: str

    @property
    def completes(self) -> bool:
        """Return True if the model may have an `auto_complete_config`."""
        name = "auto_complete_config"
        return name in self.text if self.cls is None else hasattr(self.cls, name)


def prepare_model(
    target: ModelSource,
    model_name: str | None,
    config: ConfigSource,
    version: int | None,
    given: Mapping[str, Any],
    report: Report | None,
) -> tuple[messages.Register, list[bytes]]:
    """Read all sources and complete the configuration; return the message and its payloads.

    Args:
        target: a model's folder in a repository, or a class
        model_name: None: from the configuration, or the folder's or the class's own name
        config: None: config.pbtxt of the folder
        version: None: those selected by the configuration's version policy
        given: `RegisterModelOptions`; None is the default
        report: called with the progress of slow steps

    Raises:
        TypeError: unknown option
        PyTritonBadParameterError, PyTritonValidationError: something is missing or invalid
        PicklingError: a class cannot be pickled
    """
    check_names("register_model", given, names_of(RegisterModelOptions))
    options = merge_options(None, given)
    folder, cls = _located(target)
    said, where = _configuration(config, folder)
    file = said.default_model_filename or "model.py"
    name = model_name or said.name or (folder.name if folder else _own_name(cls))
    validate_model_name(name)
    said.name = name
    versions = (
        model_dir.chosen_versions(folder, file, said, version)
        if folder
        else [1 if version is None else version]
    )
    source = _ProgramSource(folder, cls, _text_of(folder, cls, versions))
    world = _worker_environment(options, said, folder, step_reporter(report))
    if source.completes:  # with several versions, the newest one is used
        limit_s = options["load_timeout_s"]
        said = _completed(source, said, world, versions[-1], file, limit_s)
    _check(said, where)
    document = model_dir.config_for_triton(said, versions)
    places = _places(said, options)
    model = _python_model(source, said, places, file)
    spec = _spec(name, versions, document, world, options, places, model)
    if cls is None:
        payload = pack(Header((3, 9), by_reference=True), b"")
    else:
        # Here: the daemon runs a process per folder to prepare, which does not need cloudpickle and pyzmq.
        from pytriton._register.pickling import pack_callable

        warn_of_missing(name, [cls], world.stayed)
        with closing(WorkerModules(world, own_interpreter=options["python"] is None)) as imports:
            payload = pack_callable(cls, imports, name)
    message = messages.Register(spec, bool(options["replace"]), bool(options["ephemeral"]))
    return message, [payload]


def backend_of(folder: Path) -> str:
    """Return the backend that serves a model's folder in Triton: "python", another one, or "an unknown backend".

    Raises:
        PyTritonBadParameterError: its configuration cannot be read.
    """
    said, _ = _configuration(None, folder)
    files = [
        entry.name for one in folder.iterdir() if one.name.isdecimal() for entry in one.iterdir()
    ]
    return table.backend_of(model_dir.plain(said), files) or "an unknown backend"


def configuration_of(config: ConfigSource) -> dict[str, Any]:
    """Return the JSON form of `config=`; empty if it is None.

    Raises:
        PyTritonBadParameterError: it cannot be read.
    """
    return model_dir.plain(_configuration(config, None)[0])


def names_environment(config: ConfigSource, folder: Path | None) -> bool:
    """Return True if a model's configuration names the environment it runs in.

    Raises:
        PyTritonBadParameterError: the configuration cannot be read.
    """
    return model_dir.ENVIRONMENT_PARAMETER in _configuration(config, folder)[0].parameters


def _spec(
    name: str,
    versions: list[int],
    document: dict[str, Any],
    world: messages.WorkerEnvironment,
    options: RegisterOptions,
    places: list[model_dir.InstancePlace],
    model: messages.PythonModel,
) -> messages.ModelSpec:
    devices = device_list(options["devices"])
    asked = options["instances"]
    autoscale = autoscale_of(asked) if asked is not None else autoscale_in(document)
    if asked is None and not devices:
        asked = len(model.kinds)
    streams = model.streams or document.get("model_transaction_policy", {}).get("decoupled")
    instances = max(1, autoscale.least) if autoscale else count_instances(asked, devices, None)
    fields = spec_fields(options)
    fields.update(
        name=name,
        version=versions[-1],
        versions=versions if len(versions) > 1 else [],
        config=document,
        world=world,
        instances=instances,
        autoscale=autoscale,
        devices=devices or model_dir.devices_of(places, instances),
        max_inflight_batches=options["max_inflight_batches"]
        or (1 if streams else default_lanes(document)),
        python_model=model,
    )
    return messages.ModelSpec(**fields)


def _places(said: Any, options: RegisterOptions) -> list[model_dir.InstancePlace]:
    """Return the places of the instances, from `devices=`, else from the configuration."""
    return [
        model_dir.InstancePlace(
            f"{said.name}_0_{index}", "CPU" if device in (None, "") else "GPU", "0"
        )
        for index, device in enumerate(device_list(options["devices"]))
    ] or model_dir.places_of(said)


def _python_model(
    source: _ProgramSource, said: Any, places: list[model_dir.InstancePlace], file: str
) -> messages.PythonModel:
    return messages.PythonModel(
        model_config=model_dir.config_for_model(said),
        folder="" if source.folder is None else str(source.folder),
        file=file,
        names=[place.name for place in places],
        kinds=[place.kind for place in places],
        device_ids=["0" for _ in places],  # each worker only sees its own GPU, as number 0
        streams=_STREAM_NAMES.search(source.text) is not None,
    )


def _located(target: ModelSource) -> tuple[Path | None, type | None]:
    if inspect.isclass(target):
        return None, target
    if not isinstance(target, (str, os.PathLike)):
        raise PyTritonBadParameterError(
            f"register_model takes a model's folder or its class, got {with_article(type(target).__name__)}."
        )
    folder = Path(target).expanduser().absolute()
    if not folder.is_dir():
        raise PyTritonBadParameterError(
            f"The folder {folder} does not exist. Pass a model's folder in a Triton model repository, the one that "
            f"{model_dir.CONFIG_FILE} is in."
        )
    return folder, None


def _configuration(config: ConfigSource, folder: Path | None) -> tuple[Any, str]:
    """Return the configuration as a message, and its origin."""
    if isinstance(config, Mapping):
        return model_dir.config_of(config, "config="), "config="
    if isinstance(config, str) and ("\n" in config or ":" in config):
        return model_dir.parse_config(config, "config="), "config="
    if config is None and folder is None:
        return model_dir.parse_config("", "nothing"), "config="
    path = Path(config) if config is not None else Path(folder or "") / model_dir.CONFIG_FILE
    if config is None and not path.exists():  # auto_complete_config may supply everything
        return model_dir.parse_config("", "nothing"), str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PyTritonBadParameterError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PyTritonBadParameterError(f"{path} cannot be read: {error}") from error
    return model_dir.parse_config(text, str(path)), str(path)


def _own_name(cls: type | None) -> str:
    assert cls is not None  # a folder has its own name
    if cls.__name__ == "TritonPythonModel":
        raise PyTritonValidationError(
            "A class TritonPythonModel does not define its model's name: pass model_name=."
        )
    return cls.__name__


def _text_of(folder: Path | None, cls: type | None, versions: Sequence[int]) -> str:
    """Return the Python text of all versions of a model, including helpers, which may use the sender."""
    if folder is None:
        assert cls is not None
        try:
            return inspect.getsource(inspect.getmodule(cls) or cls)
        except (OSError, TypeError):  # created at run time, or in a notebook
            return " ".join(_STREAM_NAMES.pattern.split("|"))
    # An editor's lock file (".#model.py") is a dangling link, and a folder may have such a name, too.
    files = [
        file
        for one in versions
        for file in sorted((folder / str(one)).rglob("*.py"))
        if file.is_file()
    ]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def _worker_environment(
    options: RegisterOptions,
    said: Any,
    folder: Path | None,
    say: Callable[[str], None],
) -> messages.WorkerEnvironment:
    python: Any = options["python"] or model_dir.environment_of(said, folder)
    requirements = options["requirements"]
    if python is not None and environments.is_archive(python):
        python = environments.unpacked(python, say)
    if requirements is not None:
        base = own_interpreter() if python is None else find_interpreter(python)
        python = environments.with_requirements(requirements, base, say)
    world = capture_environment(python, options["env"], options["cwd"], options["sys_path"])
    world.env.update(trace_config.environment(options["trace_config"] or ()))
    return world if python is None else environments.provide_worker_packages(world, say)


def _completed(
    source: _ProgramSource,
    said: Any,
    world: messages.WorkerEnvironment,
    version: int,
    file: str,
    limit_s: float | None,
) -> Any:
    """Return the configuration as completed by the model's `auto_complete_config`."""
    full = json.loads(model_dir.config_for_model(said))
    for made_up in ("optimization", "version_policy", "instance_group"):
        if not model_dir.plain(said).get(made_up):
            full.pop(made_up, None)
    if source.cls is not None:
        from pytriton import pb_utils

        completed = source.cls.auto_complete_config(pb_utils.ModelConfig(full))  # type: ignore[attr-defined]
        if not isinstance(completed, pb_utils.ModelConfig):
            raise PyTritonValidationError(
                f"auto_complete_config of model {said.name!r} returned {type(completed).__name__}; it must return "
                "the configuration it got"
            )
        return model_dir.config_of(completed.as_dict(), "what auto_complete_config returned")
    question = {
        "folder": str(source.folder and source.folder / str(version)),
        "file": file,
        "sys_path": world.sys_path,
        "config": full,
    }
    answer = _ask_model(question, world, said.name, limit_s)
    return model_dir.config_of(answer, "what auto_complete_config returned")


def _ask_model(
    question: Mapping[str, Any], world: messages.WorkerEnvironment, name: str, limit_s: float | None
) -> dict[str, Any]:
    """Return the configuration as the model completes it.

    Args:
        question: the input of worker/python_model/complete_config.py
        world: the workers' environment
        name: the model's name
        limit_s: time limit in seconds; None: unlimited

    Raises:
        PyTritonValidationError: it fails, or exceeds the limit.
    """
    program = str(_LIBRARY / "worker" / "python_model" / "complete_config.py")
    # Files, not pipes: a process started by the model may keep these open indefinitely.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
        answer: Any
        try:
            done = subprocess.run(
                [world.python, program, str(_LIBRARY)],
                input=json.dumps({**question, "parent": os.getpid()}).encode() + b"\n",
                cwd=world.cwd,
                # Keep another Python's bytecode out of this environment.
                env={**world.env, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=said,
                stderr=printed,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            answer = {
                "error": f"it has not returned for {limit_s:g} s (load_timeout_s)",
                "traceback": _content(printed)[-_MAX_SHOWN:],
            }
        else:
            answer = _answer_of(_content(said), done.returncode, _content(printed))
    if "error" in answer:
        raise PyTritonValidationError(
            f"auto_complete_config of model {name!r} failed: {answer['error']}\n{answer['traceback'].rstrip()}"
        )
    config: dict[str, Any] = answer["config"]
    return config


def _answer_of(said: str, code: int, printed: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return {
            "error": f"its process exited with status {code}",
            "traceback": printed[-_MAX_SHOWN:],
        }


def _content(file: IO[bytes]) -> str:
    """Return the content of a file; a model may print anything, including text in another encoding."""
    file.seek(0)
    return file.read().decode("utf-8", "backslashreplace")


def _check(said: Any, where: str) -> None:
    if said.backend not in ("", "python"):
        raise PyTritonBadParameterError(
            f'{where} says backend: {said.backend!r}. register_model serves Python models (backend: "python"); '
            "tritonserver's other backends take theirs from a repository."
        )
    if said.sequence_batching.state:
        raise PyTritonValidationError(
            f"Model {said.name!r} has implicit state (sequence_batching.state in {where}), which Python models cannot "
            "set, not even in Triton's python backend: each request would get the initial one. Keep the state in the "
            "model, under request.correlation_id(), and leave `state` out."
        )
    if not said.output:
        raise PyTritonValidationError(
            f"Model {said.name!r} has no output: {where} does not list any. Add them there, or give the "
            "model an auto_complete_config."
        )
