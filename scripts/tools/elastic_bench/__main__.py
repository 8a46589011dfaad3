"""`scripts/tools/elastic-bench`: what elastic models do, with a real daemon."""

from __future__ import annotations

import argparse
import sys

from elastic_bench import budget, shared_weights, square_wave, startup, wake_ups


def main(arguments: list[str] | None = None) -> int:
    """Show what is asked for; return 1 if a promise was broken."""
    given = _parser().parse_args(arguments)
    right: bool = given.show(given)
    return 0 if right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/tools/elastic-bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("resumes", help=wake_ups.__doc__)
    one.add_argument("--resumes", type=int, default=200, help="of each kind (200)")
    one.set_defaults(show=wake_ups.show)
    one = commands.add_parser("budget", help=budget.__doc__)
    one.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    one.add_argument("--rate", type=float, default=2.0, help="requests per second (2)")
    one.add_argument("--models", type=int, default=50, help="how many (50)")
    one.add_argument(
        "--models-in-memory", type=int, default=5, help="models that fit into memory (5)"
    )
    one.add_argument("--weights", type=int, default=64, help="MiB of each model (64)")
    one.add_argument("--load", type=float, default=0.1, help="seconds that its load takes (0.1)")
    one.add_argument("--seed", type=int, default=1, help="of the load (1)")
    one.add_argument("--out", default="build/elastic", help="folder of the plot")
    one.set_defaults(show=budget.show)
    one = commands.add_parser("square", help=square_wave.__doc__)
    one.add_argument("--seconds", type=float, default=240.0, help="how long, twice (240)")
    one.add_argument("--period", type=float, default=80.0, help="seconds of a wave (80)")
    one.add_argument("--rate", type=float, default=40.0, help="highest requests per second (40)")
    one.add_argument("--service", type=float, default=0.1, help="seconds of a request (0.1)")
    one.add_argument("--max-instances", type=int, default=8, help="instances at most (8)")
    one.add_argument("--down-after", type=float, default=10.0, help="seconds (10)")
    one.add_argument("--seed", type=int, default=1, help="of the load (1)")
    one.add_argument("--out", default="build/elastic", help="folder of the plot")
    one.set_defaults(show=square_wave.show)
    one = commands.add_parser("starts", help=startup.__doc__)
    one.add_argument("--models", type=int, nargs="+", default=[10, 250, 1000])
    one.add_argument("--times", type=int, default=1, help="starts with each number (1)")
    one.set_defaults(show=startup.show)
    one = commands.add_parser("shared", help=shared_weights.__doc__)
    one.set_defaults(show=shared_weights.show)
    return parser


if __name__ == "__main__":
    sys.exit(main())
