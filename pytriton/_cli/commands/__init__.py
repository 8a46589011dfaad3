"""The commands: each parses its arguments, calls and prints. `app.py` lists them.

They import what stands beside this folder, and where it takes long only when they run.
"""
