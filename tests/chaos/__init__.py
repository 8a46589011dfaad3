"""Break a daemon under load and account for every request; see `scripts/tools/chaos`.

__main__   the command line and the table      run      the sequence of faults
load       clients that check every response   ledger   the outcome of each request
faults     the faults                          leaks    what is left behind
models     what is served                      table    the run as a table
fleet      the same for a fleet on Ray: `scripts/tools/fleet-chaos`
"""
