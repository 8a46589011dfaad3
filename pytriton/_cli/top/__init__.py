"""`pytriton-daemon top`: what models are doing, live.

`cells` formats rows (`pytriton._protocol.rates`) as cells of the table, `plain` prints it once, `screen` shows it live
(Textual). Only `feed` communicates with the daemon.
"""
