"""`scripts/tools/simulate fleet`: prints what a large fleet costs its controller, and HAProxy."""

from __future__ import annotations

import argparse
import socket
import sys

from simulation.fleet.balancer import measure
from simulation.fleet.life import Fleet, Row, Setting

_KIB, _MIB = 1 << 10, 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Play it; return the exit code: 1 when something did not come about."""
    parser = argparse.ArgumentParser(prog="scripts/tools/simulate fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--instances", type=int, default=2, help="of each model (2)")
    parser.add_argument(
        "--payload", type=int, default=20_000, help="bytes of each callable (20000)"
    )
    parser.add_argument("--load", type=float, default=3.0, help="seconds to load a model (3)")
    parser.add_argument("--no-haproxy", action="store_true", help="the controller alone")
    given = parser.parse_args(arguments)
    ports = _free_ports(3)
    setting = Setting(
        given.nodes, given.models, given.instances, given.payload, given.load, ports[0]
    )
    fleet = Fleet(setting)
    print(f"{given.nodes} nodes, {given.models} models with {given.instances} instances each\n")
    print(
        f"{'what happens':<28} {'virtual s':>9} {'steps':>6} {'ms a step':>10} {'the longest':>11} {'calls':>9} "
        f"{'MiB sent':>9} {'KiB kept':>9}"
    )
    rows = []
    for row in fleet.play():
        rows.append(row)
        _print(row)
    kept = sum(map(len, fleet.keys.kept.values()))
    largest = max(map(len, fleet.keys.kept.values()))
    print(
        f"\nstate in Ray: {kept / _MIB:.1f} MiB in {len(fleet.keys.kept)} keys, the largest {largest / _KIB:.1f} KiB"
    )
    _, view = fleet.view()
    print(f"a balancer is told {len(view) / _MIB:.1f} MiB, when something has changed")
    if not given.no_haproxy:
        _print_balancer(view, ports)
    return int(any("NOT DONE" in row.what for row in rows))


def _print(row: Row) -> None:
    print(
        f"{row.what:<28} {row.took_s:>9.1f} {row.steps:>6} {1000 * row.median_s:>10.0f} {1000 * row.most_s:>11.0f} "
        f"{sum(row.calls.values()):>9} {row.sent / _MIB:>9.1f} {row.written / _KIB:>9.1f}"
    )
    most = ", ".join(f"{name} {count}" for name, count in row.calls.most_common(5))
    print(f"    {most}", flush=True)


def _print_balancer(view: bytes, ports: list[int]) -> None:
    one = measure(view, *ports)
    print(f"\nHAProxy: {one.models} models on {one.nodes} nodes are {one.sets} sets of nodes")
    print(
        f"  haproxy.cfg {one.configuration / _MIB:.1f} MiB, models.map {one.table / _MIB:.1f} MiB"
    )
    print(
        f"  made by us {one.decode_s + one.render_s:.1f} s (of which {one.decode_s:.1f} s to read the view)"
    )
    print(
        f"  start {one.start_s:.1f} s, reload {one.reload_s:.1f} s, each with the check of the files before it"
    )
    print(
        f"  a worker has {one.memory / _MIB:.0f} MiB and {one.files} open files; {one.up} nodes are up"
    )


def _free_ports(count: int) -> list[int]:
    """Return ports of this moment; nobody else shall take one before HAProxy does."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return numbers


if __name__ == "__main__":
    sys.exit(main())
