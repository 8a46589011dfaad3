"""`pytriton-daemon top`: what models are doing, live.

`cells` makes the words of the table out of rows (`pytriton._protocol.rates`), `plain` prints it once, `screen` shows it live
(Textual). Only `feed` asks the daemon.
"""
