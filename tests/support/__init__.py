"""Code shared by tests: running daemons, waiting for conditions, finding leftovers."""
