"""A whole model repository: all of its models are registered, or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.models.model_folders import CONFIG, make_model

from pytriton._protocol import messages
from pytriton._register.python_models.whole_repository import (
    is_repository,
    register_all,
    repository_of,
)
from pytriton.exceptions import (
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonValidationError,
    RegistrationError,
)


class Model:
    def __init__(self, name: str) -> None:
        self.name = name


class Client:
    """A fake daemon client: previously served models, and what is rolled back."""

    def __init__(self, *served: str) -> None:
        self.served = [Model(name) for name in served]
        self.sent: list[messages.Register] = []
        self.undone: list[str] = []
        self.broken: set[str] = set()
        self.failing = ""
        self.error: BaseException = RegistrationError("its worker ended")

    def register_prepared(
        self, message: messages.Register, payloads: Sequence[bytes], report: Any
    ) -> Model:
        if message.spec.name == self.failing:
            raise self.error
        self.sent.append(message)
        return Model(message.spec.name)

    def models(self) -> list[Model]:
        return self.served

    def rollback(self, name: str, progress: bool) -> None:
        self.undone.append(f"rollback {name}")

    def unregister(self, name: str) -> None:
        if name in self.broken:
            raise ModelNotFoundError("it is gone")
        self.undone.append(f"unregister {name}")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("b", "a", "c"):
        make_model(tmp_path / "models" / name)
    (tmp_path / "models" / ".hidden").mkdir()
    (tmp_path / "models" / "empty").mkdir()
    return tmp_path / "models"


def register(repository: Path, client: Client, failing: str = "", **options: Any) -> list[str]:
    client.failing = failing
    made: Any = client
    served = register_all(repository_of(repository, options), made, None)
    return [one.name for one in served]


def test_model_repositories_are_recognized(repository: Path) -> None:
    assert is_repository(repository)
    assert not is_repository(repository / "a")  # a model
    assert not is_repository(repository / "empty")
    assert not is_repository(repository / "nothing")
    assert not is_repository(object)
    with pytest.raises(PyTritonBadParameterError, match="is not a model repository"):
        repository_of(repository / "a", {})


def test_all_models_are_registered_in_order_with_the_same_options(repository: Path) -> None:
    client = Client()
    assert register(repository, client, instances=2, replace=True) == ["a", "b", "c"]
    assert {(one.spec.instances, one.replace) for one in client.sent} == {(2, True)}


def test_an_option_of_one_model_is_refused(repository: Path) -> None:
    with pytest.raises(
        PyTritonBadParameterError, match="version can be set for a single model only"
    ):
        repository_of(repository, {"version": 2, "config": None})
    assert repository_of(repository, {"version": None, "standby_workers": 1}).options == {
        "standby_workers": 1
    }


def test_if_one_fails_the_others_are_rolled_back(repository: Path) -> None:
    client = Client("a", "other")  # `a` is replaced, `b` is new
    with pytest.raises(RegistrationError) as caught:
        register(repository, client, failing="c")
    assert client.undone == ["unregister b", "rollback a"]
    text = caught.value.message
    assert "model c was not registered. its worker ended" in text
    assert "Registered before it: b was unregistered; a was rolled back." in text


def test_a_failed_rollback_is_reported(repository: Path) -> None:
    client = Client()
    client.broken = {"a"}
    with pytest.raises(
        RegistrationError, match=r"a could not be rolled back \(it is gone\)"
    ) as caught:
        register(repository, client, failing="b")
    assert "Not registered: c." in caught.value.message


def test_an_interruption_rolls_them_back(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        register(repository, client, failing="b")
    assert client.undone == ["unregister a"]


def test_an_unreadable_model_prevents_all_registrations(repository: Path) -> None:
    client = Client()
    (repository / "c" / "config.pbtxt").write_text(CONFIG.replace("output", "outputs"))
    with pytest.raises(PyTritonBadParameterError):
        register(repository, client)
    (repository / "c" / "config.pbtxt").write_text("")
    words = r"model c cannot be registered, so no model of the repository was\..*has no output"
    with pytest.raises(PyTritonValidationError, match=words):
        register(repository, client)
    assert client.sent == []


def test_a_model_of_another_backend_is_refused_with_the_fix(repository: Path) -> None:
    (repository / "b" / "config.pbtxt").write_text('backend: "onnxruntime"')
    with pytest.raises(PyTritonBadParameterError) as caught:
        register(repository, Client())
    text = caught.value.message
    assert "these are not: b (onnxruntime). Nothing was registered" in text
    assert f"--model-repository {repository}" in text
    assert f"register each of these folders: {repository / 'a'}, {repository / 'c'}" in text
