"""The command `top`: a live table of models with their metrics.

`cells` formats rows (`pytriton._protocol.rates`) as table cells, `command` prints the table once, `screen` shows it live
(with Textual). Only `feed` communicates with the daemon.
"""
