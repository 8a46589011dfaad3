"""The shared code of tests: running daemons, waiting for conditions, finding what was left behind."""
