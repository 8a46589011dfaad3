"""numpy scalars are accepted wherever a number, a bool or a text is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytriton._protocol import messages
from pytriton._protocol.arguments import parse_size, plain, with_article
from pytriton._register.message import plan
from pytriton.autoscale import Autoscale, autoscale_of
from pytriton.client.options import RequestOptions
from pytriton.exceptions import PyTritonValidationError
from pytriton.limits import Limits
from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    ModelWarmup,
    QueuePolicy,
    Tensor,
    WarmupInput,
)

pytestmark = pytest.mark.usefixtures("no_interpreter")

ONE, THREE = np.int64(1), np.int32(3)
X = [Tensor(name="x", dtype=np.float32, shape=(THREE,))]


def sent(config: ModelConfig | None = None, **options: Any) -> messages.Register:
    """Return a registration as the daemon reads it."""
    message = plan(lambda requests: requests, "m", X, X, config, options).message
    read = messages.decode(messages.encode(message))
    assert isinstance(read, messages.Register)
    return read


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        ((np.int64(1), [np.int8(2)]), (1, [2])),
    ],
)
def test_a_scalar_becomes_a_python_value(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [np.zeros(1), np.longdouble(1), np.datetime64("2026-01-01"), "a"])
def test_values_without_a_plain_form_are_unchanged(value: Any) -> None:
    assert plain(value) is value


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"instances": THREE}, "instances", 3),
        ({"load_timeout_s": np.float64(2.5)}, "load_timeout_s", 2.5),
        ({"load_timeout_s": np.float32(2)}, "load_timeout_s", 2.0),
        ({"standby_workers": ONE}, "standby_workers", 1),
        ({"lazy": np.bool_(True)}, "lazy", True),
        ({"devices": [ONE - 1]}, "instances", 1),
        ({"limits": Limits(open_files=np.int64(64))}, "instances", 1),
        ({"model_version": THREE}, "version", 3),
    ],
)
def test_options_of_models(options: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(sent(**options).spec, field) == expected


def test_autoscaling_bounds() -> None:
    assert sent(instances=(ONE, THREE)).spec.autoscale == autoscale_of((1, 3))
    given = Autoscale(THREE, ONE, target=np.float32(0.5), up_after=THREE)
    assert given.to_message() == Autoscale(3, 1, target=0.5, up_after=3).to_message()


def test_configurations() -> None:
    policy = QueuePolicy(max_queue_size=np.int64(5), allow_timeout_override=np.bool_(True))  # type: ignore[arg-type]
    batcher = DynamicBatcher(
        max_queue_delay_microseconds=THREE,
        preferred_batch_size=np.array([4, 8]),  # type: ignore[arg-type]
        default_queue_policy=policy,
    )
    warmup = ModelWarmup("w", ONE, {"x": WarmupInput(np.float32, (3,), zero_data=True)}, count=ONE)
    config = ModelConfig(
        max_batch_size=np.int64(8),
        batcher=batcher,
        model_warmup=[warmup],
        parameters={"a": THREE, "b": np.bool_(True)},  # type: ignore[dict-item]
    )
    document = sent(config).spec.config
    assert document["max_batch_size"] == 8
    assert document["dynamic_batching"]["preferred_batch_size"] == [4, 8]
    assert document["parameters"]["a"] == {"string_value": "3"}
    assert document["parameters"]["b"] == {"string_value": "true"}


def test_options_of_requests() -> None:
    options = RequestOptions(priority=ONE, sequence_id=THREE)
    assert type(options.priority) is type(options.sequence_id) is int


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instances": np.float64(2)}, r"instances has to be a whole number .* got 2\.0"),
        ({"instances": np.bool_(True)}, r"instances has to be a whole number .* got True"),
        ({"instances": np.array(2)}, r"instances has to be a whole number .* got array\(2\)"),
        ({"lazy": "no"}, r"lazy must be True or False, got 'no'"),
        ({"replace": 1}, r"replace must be True or False, got 1"),
    ],
)
def test_invalid_scalars_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PyTritonValidationError, match=said):
        sent(**options)


def test_an_unsendable_value_is_named() -> None:
    with pytest.raises(TypeError, match="objects of type datetime64 is unsupported"):
        messages.encode(messages.Unregister(np.datetime64("2026-01-01")))


# ── Numbers of bytes as people write them ──


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (0, 0), (4096, 4096), ("4096", 4096), ("7b", 7), ("1k", 1000), ("1kB", 1000), ("1KiB", 1024),
        ("64MiB", 64 << 20), ("1.5GB", 1_500_000_000), (" 2 ti ", 2 << 40), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_a_size(raw: object, count: int) -> None:
    assert parse_size(raw) == count


@pytest.mark.parametrize("raw", [True, -1, "-1", "", "MiB", "1 PiB", "1e3", 1.5e30, None, "1,5GB"])
def test_no_size(raw: object) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        parse_size(raw)


# ── Articles before names known only at run time ──


@pytest.mark.parametrize(
    "right",
    [
        "an ONNX", "a PyTorch", "a TensorFlow SavedModel", "a scikit-learn", "an XGBoost", "a LightGBM",
        "an int", "an object", "a str", "a uint8", "a Union", "an ndarray", "an OSError", "a _thread.lock",
        "an io.TextIOWrapper", "an MLPClassifier", "a PCA", "an SVC", "a KMeans", "an IsolationForest", "a user",
    ],
)  # fmt: skip
def test_article(right: str) -> None:
    assert with_article(right.partition(" ")[2]) == right
