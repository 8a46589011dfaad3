"""The seeded fuzzer behind `scripts/tools/fuzz`: damaged, hostile, replayed and disordered messages for every process.

`values` makes bytes and values from a seed, `target` defines the interface of a target, `targets` lists them;
`target_daemon` is the real daemon that the outer targets attack; `runner` runs them and prints the table.
"""
