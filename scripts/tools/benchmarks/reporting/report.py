"""Writes the files of a run: results.json and report.md."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reporting.figures import Figure, Row, disturbed, rows
from benchmarks.reporting.targets import LIMITS, verdicts


def write(results: dict[str, Any], out: Path) -> None:
    """Write the files of a run to a folder, and print the report."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = render(results)
    (out / "report.md").write_text(text)
    print(f"{text}\n[bench] results and report: {out}")


def render(results: dict[str, Any]) -> str:
    """Return the whole report as Markdown."""
    parts = [
        _head(results),
        _ratios(results),
        _footprint(results),
        _cases(results),
        _left_out(results),
    ]
    return "\n".join(part for part in parts if part)


def _head(results: dict[str, Any]) -> str:
    meta = results["meta"]
    plan = meta["plan"]
    lines = [
        "# Benchmark",
        "",
        f"{meta['date']}, commit {meta['commit']}: {meta['cpu']}, {meta['cores']} cores, "
        f"{meta['memory_gb']} GB, Linux {meta['kernel']}, Python {meta['python']}; load before "
        f"{meta['load_average_before']:.1f}. {plan['rounds']} rounds of {plan['seconds']:g} s each, "
        f"systems in turn; load by {' and '.join(meta['generators']) or 'Python'}.{_quiet(results)}",
        "",
        "| system | versions | configuration |",
        "|---|---|---|",
    ]
    for name, title in results["titles"].items():
        known = ", ".join(f"{key} {value}" for key, value in meta["versions"][name].items())
        lines.append(f"| {title} (`{name}`) | {known} | {results['notes'][name]} |")
    return "\n".join([*lines, ""])


def _quiet(results: dict[str, Any]) -> str:
    """Return a sentence on the CPUs that the benchmark did not have; "" if unknown."""
    known = [one for one in results["measurements"] if "stolen_cpus" in one]
    if not known:
        return ""
    others, stolen = (median(one[name] for one in known) for name in ("others_cpus", "stolen_cpus"))
    kept = sum(map(disturbed, known))
    return (
        f" Other programs on this machine used {others:.1f} CPUs, other machines on the host {stolen:.1f} (medians); "
        f"{kept} of {len(known)} measurements lacked more than a tenth of the CPUs."
    )


def _ratios(results: dict[str, Any]) -> str:
    found = verdicts(results)
    if not found:
        return ""
    met = sum(one.met for one in found)
    lines = [
        "## Ratios: ours ÷ theirs",
        "",
        f"{met} of {len(found)} goals reached. Medians of the ratios in each round, and their extremes. Rounds in which a "
        "hypervisor took more than a tenth of the CPUs away are left out if there are others.",
        "",
        "| case | metric | compared with | goal | measured | spread | reached |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for one in found:
        measured, spread, verdict = "—", "—", "not measured"
        if one.ratio is not None:
            measured = f"{one.ratio.middle:.2f}"
            spread = f"{one.ratio.least:.2f} to {one.ratio.most:.2f}"
            verdict = "yes" if one.met else "**no**"
            verdict += ", CPUs stolen" if one.ratio.disturbed else ""
        lines.append(
            f"| {_case(one.case)} | {one.metric} | {one.theirs} | {one.goal} | {measured} "
            f"| {spread} | {verdict} |"
        )
    return "\n".join([*lines, ""])


def _footprint(results: dict[str, Any]) -> str:
    found = results.get("footprint", [])
    if not found:
        return ""
    lines = ["## Footprint", "", "| figure | system | value | goal |", "|---|---|--:|---|"]
    for one in found:
        limit = LIMITS.get(one["name"]) if one["system"] == "ours" else None
        goal = (
            "" if limit is None else f"≤ {limit:g}: {'yes' if one['value'] <= limit else '**no**'}"
        )
        lines.append(
            f"| {one['name']} | {one['system']} | {one['value']:.2f} {one['unit']} | {goal} |"
        )
    return "\n".join([*lines, ""])


def _cases(results: dict[str, Any]) -> str:
    if not results["measurements"]:
        return ""
    lines = [
        "## All figures",
        "",
        "Median (lowest to highest) of the rounds. CPUs: 1.0 is one core. Others: the kernel's network stack, and other "
        "programs. Stolen: taken away by the hypervisor.",
        "",
    ]
    last = ""
    for row in rows(results["measurements"]):
        if row.case[0] != last:
            last = row.case[0]
            lines += [
                "",
                f"### {last}: {results['workloads'].get(last, '')}",
                "",
                "| clients | system | requests/s | p50 ms | p99 ms | server CPUs | generator CPUs "
                "| others' CPUs | stolen CPUs | CPU µs/request | page faults/request | errors |",
                "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
            ]
        lines.append(_line(row))
    return "\n".join([*lines, ""])


def _line(row: Row) -> str:
    _, protocol, clients = row.case
    figures = row.figures
    return (
        f"| {protocol} {clients} | {row.system} | {_spread(figures['requests_s'], 0)} "
        f"| {_spread(figures['p50_ms'], 2)} | {_spread(figures['p99_ms'], 2)} "
        f"| {figures['server_cpus'].middle:.2f} | {figures['generator_cpus'].middle:.2f} "
        f"| {figures['others_cpus'].middle:.2f} "
        f"| {figures['stolen_cpus'].middle:.2f} "
        f"| {figures['cpu_us_per_request'].middle:.0f} "
        f"| {figures['faults_per_request'].middle:.0f} "
        f"| {row.errors or 0}{f' of {row.requests}' if row.errors else ''} |"
    )


def _spread(one: Figure, digits: int) -> str:
    digits = digits if one.middle < 100 else 0
    if one.middle < 100 and digits == 0:
        digits = 1
    return f"{one.middle:.{digits}f} ({one.least:.{digits}f} to {one.most:.{digits}f})"


def _left_out(results: dict[str, Any]) -> str:
    lines = []
    for title, found in (("Missing", results.get("missing")), ("Left out", results["skipped"])):
        if found:
            lines += [f"## {title}", ""]
            lines += [
                f"- {one['workload']}: {one['system']}: {one['reason'][:300]}" for one in found
            ]
            lines.append("")
    return "\n".join(lines)


def _case(case: tuple[str, str, int]) -> str:
    workload, protocol, clients = case
    return f"{workload}, {protocol}, {clients} {'client' if clients == 1 else 'clients'}"
