"""A runner's arguments, before anything is started or sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton.runner import Runner, RunnerArgumentError
from pytriton.runner.arrays import to_array
from pytriton.runner.options import daemon_settings
from pytriton.runner.signature import Signature

CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 4,
    "input": [
        {"name": "a", "data_type": "TYPE_FP32", "dims": ["2"]},
        {"name": "n", "data_type": "TYPE_INT16", "dims": ["1"], "reshape": {}},
        {"name": "t", "data_type": "TYPE_STRING", "dims": ["-1"], "optional": True},
    ],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["2"]}],
}


class Tensor:
    """An object that supports DLPack, as torch's tensors do."""

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        self.array = array
        self.requires_grad = requires_grad

    def __dlpack__(self, **options: Any) -> Any:
        assert not self.requires_grad
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def detach(self) -> Tensor:
        return Tensor(self.array)


class OnDevice:
    """A tensor on a GPU, whose own library copies it to the CPU."""

    def __dlpack__(self) -> Any:
        raise AssertionError("not asked for memory that nobody can read here")

    def __dlpack_device__(self) -> Any:
        return 2, 0

    def cpu(self) -> Any:
        return np.arange(2.0)


class Frame:
    """The conversion that pandas' objects offer."""

    def to_numpy(self) -> Any:
        return np.arange(4.0).reshape(2, 2)


class Image:
    """The conversion that PIL's images offer."""

    def __init__(self, pixels: Any) -> None:
        self.__array_interface__ = pixels.__array_interface__
        self.pixels = pixels


def test_inputs_are_accepted_by_position_or_by_name() -> None:
    signature = Signature(CONFIG)
    a, n = np.ones((3, 2)), np.ones(3, int)
    by_position = signature.bind([a, n], {})
    by_name = signature.bind([], {"n": n, "a": a})
    assert list(by_position) == ["a", "n"]
    assert by_position["a"].dtype == by_name["a"].dtype == np.float32
    assert by_position["n"].dtype == np.int16
    assert by_position["n"].shape == (3, 1)
    text = signature.bind([a, n, [["ü"]] * 3], {})["t"]
    assert text.tolist() == [["ü".encode()]] * 3


def test_a_scalar_is_one_sample_of_one_element() -> None:
    """As in `runner.chat.stream("a question")`; it does not fit an axis with more elements."""
    bound = Signature(CONFIG).bind([np.ones((1, 2)), 7, "ü"], {})
    assert bound["n"].tolist() == [[7]]
    assert bound["t"].tolist() == [["ü".encode()]]
    unbatched = Signature({**CONFIG, "max_batch_size": 0}).bind([np.ones(2), 7, "ü"], {})
    assert unbatched["n"].shape == unbatched["t"].shape == (1,)
    with pytest.raises(RunnerArgumentError, match=r"shape \[\], which does not match"):
        Signature(CONFIG).bind([1.0, 7], {})


def test_matching_arrays_are_not_copied() -> None:
    array = np.ones((3, 2), np.float32)
    assert np.shares_memory(Signature(CONFIG).bind([array, [1, 1, 1]], {})["a"], array)
    single = np.ones(2, np.float32)
    assert np.shares_memory(Signature(CONFIG).bind([single, [1]], {})["a"], single)


@pytest.mark.parametrize(
    ("positional", "named", "text"),
    [
        ([1], {"a": 1}, "either by position or by name"),
        ([1, 2, 3, 4], {}, r"has 3 inputs \(a \(FP32 \[2\]\), .*optional\)\), got 4"),
        ([1], {}, "has 3 inputs .*got 1"),
        ([], {"a": 1}, "requires the input 'n'"),
        ([], {"a": 1, "n": 1, "z": 1}, "has no input 'z'"),
        ([np.ones((3, 2)), [70000] * 3], {}, "INT16: 70000 is out of the range of int16"),
        (
            [np.ones((3, 2)), np.array([1, 2, 1 << 63], np.uint64)],
            {},
            "9223372036854775808 is out of the range",
        ),
        ([[[1e39, 1]], [1]], {}, r"FP32: 1e\+39 is out of the range of float32"),
        ([np.ma.masked_array([[1.0, 2.0]], [[False, True]]), [1]], {}, "'a' is a masked array"),
        ([[np.ma.masked_array([1.0, 2.0], [False, True])], [1]], {}, "'a' is a masked array"),
        ([np.ones((3, 2)), [1.5] * 3], {}, r"'n' takes INT16 \(int16\), got float64"),
        ([np.ones((3, 2)), [1, 2]], {}, r"different batch sizes \(a: 3, n: 2\)"),
        ([np.ones((5, 2)), [1] * 5], {}, "at most 4 rows, got 5"),
        ([np.ones((3, 2, 1)), [1] * 3], {}, r"shape \[3, 2, 1\], which does not match"),
        ([np.ones((1, 2)), [1], [[3]]], {}, "'t' must contain bytes or strings .*got int64"),
        ([np.ones((1, 2)), [1], np.array([[None]])], {}, "contains a NoneType"),
    ],
)
def test_each_mistake_has_its_own_error(
    positional: list[Any], named: dict[str, Any], text: str
) -> None:
    with pytest.raises(RunnerArgumentError, match=text):
        Signature(CONFIG).bind(positional, named)


def test_convertible_values_are_not_copied() -> None:
    array = np.arange(4.0)
    for value in (Tensor(array), Tensor(array, requires_grad=True), Image(array)):
        assert np.shares_memory(to_array("x", value), array)
    assert to_array("x", Frame()).shape == (2, 2)
    assert to_array("x", OnDevice()).tolist() == [0.0, 1.0]
    assert to_array("x", b"bytes").dtype.kind == "S"
    with pytest.raises(RunnerArgumentError, match="cannot be a dict"):
        to_array("x", {})


def test_options_of_tritonserver_become_settings() -> None:
    given = [
        "--model-control-mode=explicit",
        "--load-model=a",
        "--load-model=b",
        "--http-port=9000",
        "--allow-metrics=false",
        "--exit-timeout-secs=5",
        "--trace-config=rate=1",
        "--trace-config=count=2",
    ]
    assert daemon_settings(given) == {
        "model_control_mode": "explicit",
        "load_model": ["a", "b"],
        "http_port": 9000,
        "allow_metrics": False,
        "grace_period_s": 5.0,
        "tritonserver_options": {"trace-config": ["rate=1", "count=2"]},
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["log-verbose=1"], "list of strings starting with '--'"),
        ("--log-verbose=1", "list of strings starting with '--'"),
        ([1], "list of strings starting with '--'"),
        (["--http-port=many"], "'--http-port=many' must have a number"),
        (["--allow-http=perhaps"], "must have true or false"),
    ],
)
def test_unknown_options_are_refused(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        daemon_settings(given)


def test_a_runner_checks_its_arguments_and_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'grpc' or 'http', got 'smtp'"):
        Runner("r", tmp_path, "smtp")
    with pytest.raises(RunnerArgumentError, match=r"either model_repository=.*or daemon="):
        Runner("r")
    with pytest.raises(RunnerArgumentError, match=r"either model_repository=.*or daemon="):
        Runner("r", tmp_path, daemon=tmp_path)
    with pytest.raises(RunnerArgumentError, match=r"folder .*nowhere does not exist"):
        Runner("r", tmp_path / "nowhere")
    with pytest.raises(
        RunnerArgumentError, match="cli_args and settings apply only to a private daemon"
    ):
        Runner("r", daemon=tmp_path, cli_args=["--log-verbose=1"])
    runner = Runner("r", [tmp_path, "s3://bucket/models"])
    assert "any_model" in repr(runner.any_model)
    assert "with-dashes" in repr(runner["with-dashes"].version(2))
    with pytest.raises(AttributeError):
        runner._repr_html_  # noqa: B018  (notebooks ask)
    runner.close()
