"""The seeded fuzzer behind `scripts/tools/fuzz`: damaged, hostile, replayed and disordered messages for every process.

`values` makes bytes and values from a seed, `target` is what a target has to offer, `targets` lists
them; `target_daemon` is the real daemon that the outer targets aim at; `runner` runs them and prints the
table.
"""
