"""The command `tune`, which measures a model with various instance counts, thread counts and batch sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pytriton._cli.errors import CliError, command, errors_of_clients
from pytriton._cli.flags import JsonFlag, ModelArgument, RuntimeDirFlag
from pytriton._cli.output import Spinner, print_json, say, visible
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton._cli.commands.tuning import Measurement, NotTunable, Tuner


@command
def tune(
    model: ModelArgument,
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="NAME=VALUE",
            help="The request to measure with, as for `call`; @FILE is the whole body. Default: an example made from the "
            "model's schema or tensors.",
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(min=1, max=256, help="Number of clients that send requests.")
    ] = 8,
    time_limit: Annotated[float, typer.Option(min=5, help="Maximum duration, in seconds.")] = 60,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Measure a copy of a model with other numbers of instances and threads and other batch sizes, and propose the
    best.
    """
    from pytriton._cli import daemon_connection
    from pytriton._cli.commands.tuning import NICE, NotTunable, Tuner, check_tunable, request_for
    from pytriton.daemon import connect

    rundir = daemon_connection.runtime_dir(runtime_dir)
    with errors_of_clients(), connect(runtime_dir=rundir.path) as client:
        try:
            info = client.model_info(model)
            has_workers = info.served_by == "workers"
            kept = check_tunable(
                info, client.registrations(model, payloads=True) if has_workers else []
            )
            request = request_for(kept.spec, info.config, arguments or ())
            os.nice(NICE)
            tuner = Tuner(client, kept, request, clients=clients, limit_s=time_limit)
        except NotTunable as error:
            raise CliError(ExitCode.USAGE, _text_of(error, model, arguments)) from None
        except (ValueError, OSError) as error:
            raise CliError(ExitCode.USAGE, str(error)) from None
        try:
            _measure(tuner, model)
        except NotTunable as error:
            raise CliError(
                ExitCode.REGISTRATION_FAILED, _text_of(error, model, arguments)
            ) from None
        finally:  # also after Ctrl-C
            if tuner.measurements and tuner.measurements[0].counts:
                _print(tuner, clients, as_json=as_json, is_typed=kept.spec.web is not None)


def _text_of(error: NotTunable, model: str, arguments: Sequence[str] | None) -> str:
    hint = f"\nGive a request: pytriton-daemon tune {model} NAME=VALUE ..."
    return f"{error}{hint if error.needs_request and not arguments else ''}"


def _measure(tuner: Tuner, model: str) -> None:
    with Spinner(f"measuring {model}: {_described(tuner.current)}") as spinner:
        for measured in tuner.run():
            found = measured.problem or f"{measured.requests_s:.1f} requests/s"
            spinner.say(f"{_described(measured.combination)}: {found}")


def _described(combination: Sequence[int]) -> str:
    instances, threads, batch = combination
    text = f"{instances} instance{'s' * (instances > 1)} with {threads} thread{'s' * (threads > 1)}"
    return f"{text}, batches of up to {batch}" if batch > 1 else text


def _print(tuner: Tuner, clients: int, *, as_json: bool, is_typed: bool) -> None:
    from pytriton._cli.commands.tuning import best_of, code_for

    best = best_of(tuner.measurements)
    assert best is not None  # the first measurement counts
    code = code_for(best.combination, tuner.current, is_typed=is_typed)
    if as_json:
        rows = [
            {
                **one.combination._asdict(),
                **{key: value for key, value in one._asdict().items() if key != "combination"},
                "is_current": one.combination == tuner.current,
                "is_best": one is best,
            }
            for one in tuner.measurements
        ]
        print_json({"clients": clients, "measurements": rows, "code": code})
        return
    _print_table(tuner, best)
    if best.combination == tuner.current:
        say("No other combination is better: leave the model as it is.")
        return
    say(f"With {clients} clients, this is best:")
    typer.echo(code)


def _print_table(tuner: Tuner, best: Measurement) -> None:
    from rich.text import Text

    from pytriton._cli.tables import make_console, make_table

    table = make_table(
        "instances", "threads", "batch", "requests/s", "p50 ms", "p99 ms", "memory", ""
    )
    for one in tuner.measurements:
        figures = [f"{one.requests_s:,.1f}", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}"]
        figures.append(f"{one.memory / (1 << 20):,.0f} MiB")
        remarks = ["current"] if one.combination == tuner.current else []
        remarks += ["best"] if one is best else []
        remarks += [one.failures] if one.failed else []
        remarks += [f"not measured: {one.problem}"] if one.problem else []
        batch = one.combination.max_batch_size
        table.add_row(
            str(one.combination.instances),
            str(one.combination.threads),
            str(batch) if batch > 1 else "-",
            *(["-"] * 4 if one.problem else figures),
            Text(visible(", ".join(remarks))),
        )
    make_console().print(table)
