"""Break a fleet on Ray under load and account for every request; see `scripts/tools/fleet-chaos`.

__main__   the command line and the table     target   the fleet, and when it counts as recovered
faults     the faults

Load and ledger are those of `scripts/tools/chaos`.
"""
