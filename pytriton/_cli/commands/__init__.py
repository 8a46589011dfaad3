"""The commands: each parses its arguments, makes a call and prints the result. `command_table.py` lists them.

They import the modules beside this directory; slow imports happen when a command runs.
"""
