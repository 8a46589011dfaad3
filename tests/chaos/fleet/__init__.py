"""Break a fleet on Ray under load and account for every request; see `scripts/fleet-chaos`.

__main__   the command line and the table     ground   the fleet that is broken, and what mended means
faults     what is broken, and how

Load and ledger are those of `scripts/chaos`.
"""
