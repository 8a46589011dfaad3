"""Which environment variables are forwarded with a model to its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._protocol.env_variables import (
    forwarded_variables,
    local_variables,
    selected_variables,
    usable_variables,
    with_direct_loopback,
)

TRAVELS = {
    "PATH": "p", "LD_LIBRARY_PATH": "l", "LC_ALL": "C", "CUDA_HOME": "c", "OMP_NUM_THREADS": "2", "HF_HOME": "h",
    "https_proxy": "http://me:word@proxy:3128", "TOKENIZERS_PARALLELISM": "false", "SSL_CERT_FILE": "s",
    "MODEL_DIR": "/m", "MY_SETTING": "1", "AWS_REGION": "eu", "MONKEY": "m", "COMPASS": "n", "AUTHOR": "a",
    "XDG_CACHE_HOME": "/c", "XDG_DATA_DIRS": "/d", "DATABASE_URL": "postgres://host/name", "SOURCE_PATH": "s",
}  # fmt: skip
OF_THE_INTERPRETER = {
    "PYTHONHASHSEED": "0", "PYTHONPATH": "q", "VIRTUAL_ENV": "v", "CONDA_PREFIX": "c",
}  # fmt: skip
SECRETS = {
    "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "a", "AWS_ACCESS_KEY_ID": "i", "AN_API_KEY": "k", "WANDB_APIKEY": "k",
    "A_PASSWORD": "w", "DB_PASS": "w", "MYSQL_PWD": "w", "gh_pat": "p", "MY_DSN": "d", "A_COOKIE": "c",
    "OTEL_EXPORTER_OTLP_HEADERS": "key=k", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "key=k", "X_AUTH": "b",
    "DATABASE": "postgres://me:word@host/name", "REDIS": "redis://:word@host", "my_secret": "s",
}  # fmt: skip
OF_A_SESSION = {
    "DISPLAY": ":0", "SSH_AUTH_SOCK": "s", "XDG_RUNTIME_DIR": "/r", "XDG_SESSION_ID": "1", "TMUX": "t", "TERM": "xterm",
    "TERM_PROGRAM": "t", "PWD": "/", "SHLVL": "1", "NOTIFY_SOCKET": "n", "DBUS_SESSION_BUS_ADDRESS": "d",
}  # fmt: skip
OF_A_KEYBOARD = {
    "PYTHONINSPECT": "1",
    "PYTHONSTARTUP": "f",
    "PYTHONSAFEPATH": "1",
    "PYTHONBREAKPOINT": "b",
}
ODD = {"NOT_TEXT": "\udcff"}
ALL = {
    **TRAVELS,
    **OF_THE_INTERPRETER,
    **SECRETS,
    **OF_A_SESSION,
    **OF_A_KEYBOARD,
    **ODD,
    "_": "/bin/sh",
}


def test_everything_but_secrets_and_session_variables_is_forwarded() -> None:
    assert forwarded_variables(ALL) == {**TRAVELS, **OF_THE_INTERPRETER}
    assert forwarded_variables(ALL, own_interpreter=False) == TRAVELS


def test_all_means_every_useful_variable() -> None:
    of_use = {**TRAVELS, **OF_THE_INTERPRETER, **SECRETS, **OF_A_SESSION, "_": "/bin/sh"}
    assert usable_variables(ALL) == of_use
    assert usable_variables(ALL, own_interpreter=False) == {
        name: value for name, value in of_use.items() if name not in OF_THE_INTERPRETER
    }


def test_the_path_of_a_secret_is_not_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.touch()
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    assert forwarded_variables({name: str(file)}) == {name: str(file)}
    assert forwarded_variables({name: str(tmp_path / "gone")}) == {}


def test_local_variables_are_known_by_name() -> None:
    sent = forwarded_variables(ALL)
    assert local_variables(ALL, sent) == sorted({**SECRETS, **OF_A_SESSION, **OF_A_KEYBOARD, **ODD})


def test_a_list_copies_sets_or_forwards_all() -> None:
    environ = {"HF_TOKEN": "t", "A": "1"}
    assert selected_variables(environ, ["HF_TOKEN", "GONE", "B=2=3", "C="]) == {
        "HF_TOKEN": "t", "B": "2=3", "C": "",
    }  # fmt: skip
    assert selected_variables(environ, ["*", "A=2"]) == {"HF_TOKEN": "t", "A": "2"}


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({"http_proxy": "p"}, "localhost,127.0.0.1,::1"),
        ({"HTTPS_PROXY": "p", "no_proxy": "a, .b,localhost"}, "a,.b,localhost,127.0.0.1,::1"),
        ({"all_proxy": "p", "NO_PROXY": "a"}, "a,localhost,127.0.0.1,::1"),
        ({"http_proxy": "p", "no_proxy": "*"}, "*"),
    ],
)
def test_no_proxy_is_used_for_this_machine(environ: dict[str, str], hosts: str) -> None:
    given = dict(environ)
    assert with_direct_loopback(environ) == {**environ, "no_proxy": hosts, "NO_PROXY": hosts}
    assert environ == given


def test_without_a_proxy_nothing_changes() -> None:
    assert with_direct_loopback({"A": "1", "no_proxy": "x"}) == {"A": "1", "no_proxy": "x"}
