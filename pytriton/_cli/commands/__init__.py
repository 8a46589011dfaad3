"""The commands, one module for each group. `command_table.py` lists them.

A command parses its arguments, sends a request and prints the result. It imports slow modules only when it runs.
"""
