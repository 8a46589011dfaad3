"""Break a fleet on Ray under load and account for every request; see `scripts/tools/fleet-chaos`.

__main__   the command line and the table     target   the fleet that is broken, and what recovered means
faults     what is broken, and how

Load and ledger are those of `scripts/tools/chaos`.
"""
