"""`tune`: which combinations are measured, which one is proposed, and the example requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytriton._cli.commands.tuning import (
    Combination,
    Measurement,
    NotTunable,
    batch_sizes,
    best_of,
    check_tunable,
    code_for,
    copy_of,
    current_of,
    example_of,
    request_for,
    splits,
)
from pytriton._protocol import messages


def spec_of(env: dict[str, str] | None = None, **fields: Any) -> messages.ModelSpec:
    config = fields.pop("config", {"max_batch_size": 1})
    return messages.ModelSpec(
        "m", 1, config, messages.WorkerEnvironment("python", env=env or {}), **fields
    )


def measured(instances: int, requests_s: float, p99_ms: float = 1.0, **fields: Any) -> Measurement:
    return Measurement(Combination(instances, 1, 1), requests_s, 1.0, p99_ms, **fields)


# ── combinations ───────────────────────────────────────────────────────────────────────────────


def test_the_current_number_of_threads() -> None:
    assert current_of(spec_of(), 0, cores=8) == (1, 8, 1)
    assert current_of(spec_of(instances=2), 4, cores=8) == (2, 4, 1)
    assert current_of(spec_of({"OMP_NUM_THREADS": "3"}), 0, cores=8) == (1, 3, 1)
    assert current_of(spec_of({"OMP_NUM_THREADS": "4,2"}), 0, cores=8) == (1, 8, 1)


@pytest.mark.parametrize(
    ("cores", "found"),
    [
        (1, []),
        (2, [(2, 1), (1, 1)]),
        (4, [(4, 1), (2, 2), (1, 1), (2, 1)]),
        (6, [(6, 1), (4, 1), (2, 3), (1, 1), (2, 1)]),
    ],
)
def test_cores_are_divided_among_instances(cores: int, found: list[tuple[int, int]]) -> None:
    current = Combination(1, cores, 1)
    assert [one[:2] for one in splits(current, cores, fixed_instances=False)] == found


def test_many_cores_do_not_mean_many_instances() -> None:
    current = Combination(1, 64, 1)
    assert max(one.instances for one in splits(current, 64, fixed_instances=False)) == 8


def test_a_fixed_number_of_instances_is_kept() -> None:
    current = Combination(3, 2, 1)
    assert splits(current, 6, fixed_instances=True) == [(3, 1, 1)]


def test_batches_are_no_larger_than_the_clients_can_fill() -> None:
    best, current = Combination(2, 1, 64), Combination(1, 2, 64)
    assert batch_sizes(best, current, clients=8) == [(2, 1, 1), (2, 1, 4)]
    assert batch_sizes(best, current, clients=16) == [(2, 1, 1), (2, 1, 4), (2, 1, 16)]
    assert batch_sizes(Combination(2, 1, 0), Combination(1, 2, 0), clients=8) == []


# ── the proposal ───────────────────────────────────────────────────────────────────────────────


def test_the_highest_throughput_is_proposed() -> None:
    rows = [measured(1, 100), measured(2, 190), measured(4, 150)]
    assert best_of(rows) is rows[1]


def test_instances_that_hardly_help_are_not_proposed() -> None:
    rows = [measured(1, 100), measured(2, 104)]
    assert best_of(rows) is rows[0]


def test_the_current_combination_stays_unless_another_is_better() -> None:
    rows = [measured(1, 100, 9.0), measured(1, 103, 1.0)]
    assert best_of(rows) is rows[0]


def test_what_failed_is_not_proposed() -> None:
    rows = [measured(1, 100), measured(2, 200, failed=1), measured(4, 0, problem="no memory")]
    assert best_of(rows) is rows[0]
    assert best_of([measured(1, 0, problem="no memory")]) is None


def test_the_code_to_write() -> None:
    current = Combination(1, 2, 8)
    line = 'client.register(..., instances=2, env={"OMP_NUM_THREADS": "1"}'
    assert code_for(Combination(2, 1, 8), current, is_typed=True) == f"{line})"
    larger = Combination(2, 1, 64)
    assert (
        code_for(larger, current, is_typed=False)
        == f"{line}, config=ModelConfig(max_batch_size=64))"
    )
    assert "@pytriton.batchable(max_batch_size=64)" in code_for(larger, current, is_typed=True)


# ── the copy ───────────────────────────────────────────────────────────────────────────────────


def test_the_copy_yields_to_the_model() -> None:
    web = messages.WebRoute("/m", "application/json", False, {})
    spec = spec_of(
        {"A": "b"},
        web=web,
        autoscale=messages.Autoscale(1, 4),
        standby_workers=1,
        config={
            "max_batch_size": 8,
            "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 5},
        },
    )
    copy = copy_of(spec, "m-tune", Combination(2, 3, 4), 30.0)
    assert (copy.name, copy.instances, copy.autoscale, copy.standby_workers) == (
        "m-tune",
        2,
        None,
        0,
    )
    assert copy.web is not None
    assert copy.web.path == "/m-tune"
    assert copy.world.env == {"A": "b", "OMP_NUM_THREADS": "3"}
    assert copy.limits.nice == 10
    assert copy.load_timeout_s == 30.0
    assert copy.config == {
        "name": "m-tune",
        "max_batch_size": 4,
        "dynamic_batching": {"max_queue_delay_microseconds": 5},
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"isolation": "thread"}, "threads of the process"),
        ({"config": {"sequence_batching": {}}}, "depend on each other"),
        ({"config": {"model_transaction_policy": {"decoupled": True}}}, "streams"),
        ({"openai": messages.OpenAICard(["chat"])}, "OpenAI"),
    ],
)
def test_models_that_cannot_be_tuned(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(NotTunable, match=why):
        check_tunable(spec_of(**fields), [b"callable"])
    check_tunable(spec_of(), [b"callable"])


# ── requests ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number", "exclusiveMinimum": 2}, 3.0),
        ({"type": "boolean"}, False),
        ({"type": "string", "maxLength": 3}, "The"),
        ({"type": "string", "default": "x"}, "x"),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"type": ["null", "number"]}, 1.0),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, [1, 1, 1]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, [1, False]),
        ({"$ref": "#/components/schemas/Row"}, {"a": 1}),
        ({}, None),
    ],
)
def test_an_example_of_a_schema(schema: dict[str, Any], value: Any) -> None:
    row = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    assert example_of(schema, {"Row": row}) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "contentEncoding": "base64"},
        {"type": "string", "pattern": "^x$"},
        {"$ref": "#/components/schemas/Node"},
    ],
)
def test_values_that_cannot_be_made_up(schema: dict[str, Any]) -> None:
    node = {"type": "object", "properties": {"n": {"$ref": "#/x/Node"}}, "required": ["n"]}
    with pytest.raises(NotTunable):
        example_of(schema, {"Node": node})


_CONFIG = {
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"]},
        {"name": "s", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "o", "data_type": "TYPE_INT8", "dims": ["1"], "optional": True},
    ],
}


def test_a_request_of_tensors() -> None:
    request = request_for(spec_of(), _CONFIG, ())
    assert request.path == "/v2/models/m/infer"
    x, s = json.loads(request.body)["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0] * 16}
    assert (s["datatype"], s["shape"]) == ("BYTES", [1, 1])


def test_a_given_request_of_tensors() -> None:
    request = request_for(spec_of(), _CONFIG, ["x=[1, 2]", "s=text", "o=[3]"])
    x, s, o = json.loads(request.body)["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    assert s["data"] == ["text"]
    assert o["shape"] == [1, 1]
    with pytest.raises(ValueError, match="there is no input y; there are: x, s, o"):
        request_for(spec_of(), _CONFIG, ["y=1"])
    with pytest.raises(ValueError, match="is not NAME=VALUE"):
        request_for(spec_of(), _CONFIG, ["y"])


def test_json_holds_no_half_floats() -> None:
    config = {"input": [{"name": "x", "data_type": "TYPE_FP16", "dims": ["2"]}]}
    with pytest.raises(NotTunable, match="FP16"):
        request_for(spec_of(), config, ())
