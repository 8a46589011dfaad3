"""The life of a Triton Python model in a worker: its environment, its arguments, its errors, its end."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.environments import find_interpreter
from support.forks.prefork import command
from support.models.model_folders import CONFIG, ask, make_model
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton import pb_utils
from pytriton._cli import daemon_connection
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonValidationError,
    RegistrationError,
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_each_model_has_its_own_interpreter(
    daemon: RunningDaemon, tmp_path: Path, version: str
) -> None:
    python = find_interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    name = f"python-{version}"
    model = daemon.client.register_model(
        make_model(tmp_path / name), python=python, requirements=["numpy"]
    )
    assert model.name == name
    assert ask(daemon, name, "'%d.%d' % sys.version_info[:2]") == version
    assert ask(daemon, name, "pb_utils.get_model_dir()") == str(tmp_path / name / "1")


@pytest.mark.timeout(600)
def test_an_environment_archive_is_unpacked_once_and_needs_only_numpy(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The packages that the environment lacks are fetched into the cache of this user: made once.
    environment = tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-m", "virtualenv", "-q", "--no-pip", "--no-setuptools", str(environment)],
        check=True,
    )
    (packages,) = environment.glob("lib/python3*/site-packages")
    for part in ("numpy", "numpy.libs"):
        shutil.copytree(
            Path(np.__file__).parents[1] / part,
            packages / part,
            ignore=shutil.ignore_patterns("tests"),
        )
    (environment / "bin" / "conda-unpack").write_text(
        "import pathlib, sys\nopen(pathlib.Path(sys.prefix) / 'unpacked', 'a').write('x')\n"
    )
    folder = make_model(
        tmp_path / "archived",
        config=CONFIG + 'parameters { key: "EXECUTION_ENV_PATH" '
        'value { string_value: "$$TRITON_MODEL_DIRECTORY/environment.tar" } }',
    )
    with tarfile.open(folder / "environment.tar", "w") as archive:
        archive.add(environment, ".")
    for again in (False, True):
        daemon.client.register_model(folder, replace=again)
        prefix = ask(daemon, "archived", "sys.prefix")
        assert "environments/archive-" in prefix
        assert (Path(prefix) / "unpacked").read_text() == "x"
    shutil.rmtree(prefix)


def test_a_model_receives_its_initialize_arguments(daemon: RunningDaemon, tmp_path: Path) -> None:
    config = CONFIG + "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
    config += 'parameters { key: "size" value { string_value: "big" } }\n'
    folder = make_model(tmp_path / "told", config=config)
    (folder / "3").mkdir()
    shutil.copy(folder / "1" / "model.py", folder / "3")
    model = daemon.client.register_model(folder, "renamed", max_inflight_batches=1)
    assert model.version == 3  # the newest, as Triton's version policy has it
    names = {
        eventually(lambda: ask(daemon, "renamed", "self.args['model_instance_name']"), "an answer")
        for _ in range(20)
    }
    assert names <= {"renamed_0_0", "renamed_0_1"}
    assert [one.state for one in model.instances] == ["ready", "ready"]
    args = eval(ask(daemon, "renamed", "{k: v for k, v in self.args.items()}"))
    ready = (
        "[pb_utils.is_model_ready(n, v) for n, v in (('renamed', ''), ('renamed', '1'), ('x', ''))]"
    )
    assert ask(daemon, "renamed", ready) == "[True, False, False]"
    assert args["model_repository"] == str(folder)
    assert args["model_version"] == "3"
    assert args["model_name"] == "renamed"
    reported = json.loads(args["model_config"])
    assert reported["parameters"] == {"size": {"string_value": "big"}}
    assert reported["backend"] == "python"
    assert reported["instance_group"][0]["count"] == 2


def test_log_lines_and_finalize_reach_the_models_log(daemon: RunningDaemon, tmp_path: Path) -> None:
    folder = make_model(
        tmp_path / "speaking",
        initialize="pb_utils.Logger.log_warn('the cache is cold')",
        more="    def finalize(self):\n"
        "        pb_utils.Logger.log_info('says goodbye')\n"
        "        pb_utils.Logger.log_verbose('chatters')\n"
        "        raise ValueError('cannot say goodbye')\n",
    )
    model = daemon.client.register_model(folder)

    def levels() -> list[str]:
        lines = [json.loads(line) for line in daemon.client.logs("speaking")]
        return [one["level"] for one in lines if "the cache is cold" in one["event"]]

    assert eventually(levels, "the line arrives") == ["warning"]
    model.unregister()
    said = [line for line in daemon.said().splitlines() if '"model": "speaking"' in line]
    assert any("says goodbye" in line and '"info"' in line for line in said)
    assert any("finalize of model speaking failed" in line and '"error"' in line for line in said)
    assert any("cannot say goodbye" in line for line in said)
    assert not any("chatters" in line for line in said)  # log_level is info


def change_log_settings(daemon: RunningDaemon, protocol: str, settings: dict[str, object]) -> None:
    """Change the log settings as a client does."""
    made = tritonclient.http if protocol == "http" else tritonclient.grpc
    url = daemon.http if protocol == "http" else daemon.grpc
    headers = daemon.client.access_headers(grpc=protocol == "grpc")
    with made.InferenceServerClient(url) as client:
        client.update_log_settings(settings, headers=headers)


@pytest.mark.skipif(FRONT != "native", reason="only our own frontend reports its log settings")
def test_a_models_log_follows_tritons_log_settings(daemon: RunningDaemon, tmp_path: Path) -> None:
    model = daemon.client.register_model(make_model(tmp_path / "chatty"))
    serials = itertools.count()

    def logged_levels() -> dict[str, str]:
        """Log a line of each level in the model; return the level that each has in the model's log."""
        name, logger = f"line {next(serials)} ", "pb_utils.Logger"
        lines = [
            f"{logger}.log_{one}('{name}{one}')" for one in ("info", "warn", "error", "verbose")
        ]
        ask(daemon, "chatty", f"[{', '.join(lines)}, print('{name}end', flush=True)]")

        def logged() -> dict[str, str]:
            found = [json.loads(line) for line in daemon.client.logs("chatty")]
            return {
                one["event"][len(name) :]: one["level"] for one in found if name in one["event"]
            }

        levels: dict[str, str] = eventually(
            lambda: all_ if "end" in (all_ := logged()) else None, "the lines"
        )
        del levels["end"]
        return levels

    by_default = {"info": "info", "warn": "warning", "error": "error"}
    verbose = {"warn": "warning", "error": "error", "verbose": "info"}
    assert logged_levels() == by_default
    for protocol in ("http", "grpc"):
        change_log_settings(daemon, protocol, {"log_info": False, "log_verbose_level": 1})
        eventually(lambda: logged_levels() == verbose, "lines as the new settings have them")
        change_log_settings(daemon, protocol, {"log_info": True, "log_verbose_level": 0})
        eventually(lambda: logged_levels() == by_default, "lines as the former settings have them")
    change_log_settings(daemon, "http", {"log_error": False})
    eventually(lambda: "error" not in logged_levels(), "no errors")
    daemon.client.upgrade()  # tritonserver stays the same, and so do its settings
    eventually(lambda: "error" not in logged_levels(), "no errors after the upgrade")
    daemon_connection.replace_server(daemon.config.rundir)
    eventually(
        lambda: logged_levels() == by_default, "lines as the new server's settings have them"
    )
    model.unregister()


def test_load_errors_are_reported(daemon: RunningDaemon, tmp_path: Path) -> None:
    client = daemon.client
    broken = make_model(tmp_path / "broken", initialize="raise pb_utils.TritonModelException('no')")
    with pytest.raises(RegistrationError, match="TritonModelException: no"):
        client.register_model(broken)
    with pytest.raises(PyTritonBadParameterError, match=r"The folder .* does not exist"):
        client.register_model(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        PyTritonBadParameterError, match=r"no numbered folder with a file model\.py"
    ):
        client.register_model(tmp_path / "empty")
    with pytest.raises(TypeError, match="unexpected keyword argument 'strictly'"):
        client.register_model(broken, strictly=True)  # type: ignore[call-arg]
    wrong = make_model(tmp_path / "wrong", config="max_batch_size: many")
    with pytest.raises(PyTritonBadParameterError, match=r"config\.pbtxt.*1:17"):
        client.register_model(wrong)
    bare = make_model(tmp_path / "bare", config="")
    with pytest.raises(PyTritonValidationError, match="no output"):
        client.register_model(bare)
    contrary = make_model(
        tmp_path / "contrary",
        more="    @staticmethod\n"
        "    def auto_complete_config(config):\n"
        "        config.add_input({'name': 'what', 'data_type': 'TYPE_FP32', 'dims': [1]})\n"
        "        return config\n",
    )
    with pytest.raises(PyTritonValidationError, match=r"TYPE_STRING.*TYPE_FP32"):
        client.register_model(contrary)
    calls = "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='m').exec()"
    calling = make_model(tmp_path / "calling-early", initialize=calls)
    with pytest.raises(RegistrationError, match="BLS is only supported during the 'execute'"):
        client.register_model(calling)
    assert "broken" not in [model.name for model in client.models()]


def test_a_class_is_served_and_crashes_are_survived(daemon: RunningDaemon) -> None:
    class Fragile:
        def initialize(self, args: dict[str, str]) -> None:
            self.name = args["model_name"]

        def execute(
            self, requests: list[pb_utils.InferenceRequest]
        ) -> list[pb_utils.InferenceResponse]:
            for request in requests:
                if request.inputs()[0].as_numpy()[0] == b"crash":
                    os.abort()
            reported = pb_utils.Tensor("told", np.array([self.name.encode()], np.object_))
            return [pb_utils.InferenceResponse([reported]) for _ in requests]

    model = daemon.client.register_model(Fragile, "fragile", config=CONFIG, on_crash="fail")
    assert ask(daemon, "fragile", "your name") == "fragile"
    with pytest.raises(InferenceServerException, match="SIGABRT"):
        ask(daemon, "fragile", "crash")
    # Until the daemon has looked after its end, the instance counts as ready.
    eventually(lambda: any(one.restarts for one in model.instances), "it is replaced")
    model.wait_ready()
    assert ask(daemon, "fragile", "your name") == "fragile"
    assert sum(one.restarts for one in model.instances) == 1


def test_the_command_line_registers_a_folder(daemon: RunningDaemon, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "by-hand")
    options = ("--runtime-dir", daemon.config.runtime_dir, "--name", "by-command")
    done = command("register", "--model-dir", str(folder), *options)
    assert done.returncode == 0, done.stderr
    assert "by-command is ready" in done.stdout
    assert ask(daemon, "by-command", "40 + 2") == "42"


def test_a_client_bound_model_ends_with_its_client(daemon: RunningDaemon, tmp_path: Path) -> None:
    code = (
        "import sys, pytriton\n"
        "client = pytriton.connect(sys.argv[1], 60)\n"
        "client.register_model(sys.argv[2], ephemeral=True, progress=False)\n"
        "print('served', flush=True)\n"
        "sys.stdin.read()\n"
    )
    folder = make_model(tmp_path / "guest")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(daemon.config.runtime_dir), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "served\n"
        assert ask(daemon, "guest", "'here'") == "here"
        script.communicate("")
    eventually(
        lambda: "guest" not in [one.name for one in daemon.client.models()], "the model stayed"
    )


def test_a_deleted_metric_family_disappears(daemon: RunningDaemon, tmp_path: Path) -> None:
    """When it is created again, its metrics start at zero, and its first description remains."""
    kept = "self.kept: dict[str, pb_utils.MetricFamily] = {}"
    daemon.client.register_model(make_model(tmp_path / "renaming", initialize=kept))
    url = daemon.client.status().server.metrics_url

    def make(which: str, text: str, value: int) -> None:
        what = f"pb_utils.MetricFamily('swapped', '{text}', pb_utils.MetricFamily.COUNTER)"
        ask(daemon, "renaming", f"self.kept.update({which}={what})")
        metric = f"self.kept['{which}'].Metric(labels={{'of': '{which}'}})"
        ask(daemon, "renaming", f"{metric}.increment({value})")

    def shown() -> list[str]:
        with urllib.request.urlopen(url) as page:
            return [line for line in page.read().decode().splitlines() if "swapped" in line]

    def eventually_shown(*lines: str) -> None:
        eventually(lambda: sorted(shown()) == sorted(lines), lambda: f"{lines}, not {shown()}")

    make("one", "first", 1)
    make("two", "second", 2)
    about = "# HELP swapped first", "# TYPE swapped counter"
    eventually_shown(*about, 'swapped{of="one"} 1', 'swapped{of="two"} 2')
    ask(daemon, "renaming", "self.kept.pop('one') and None")
    eventually_shown(*about, 'swapped{of="two"} 2')
    ask(daemon, "renaming", "self.kept.pop('two') and None")
    eventually_shown()
    make("two", "third", 5)
    eventually_shown(*about, 'swapped{of="two"} 5')
