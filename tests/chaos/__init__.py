"""Break a daemon under load and account for every request; see `scripts/tools/chaos`.

__main__   the command line and the table      run      the order of things
load       clients that check every answer      ledger   what became of each request
faults     what is broken, and how              leaks    what is left behind
models     what is served                       table    the run as a table
fleet      the same for a fleet on Ray: `scripts/tools/fleet-chaos`
"""
