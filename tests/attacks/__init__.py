"""Thousands of hostile clients attack a daemon with the native frontend, while a probe measures other clients' latency.

`scripts/tools/attack-frontend` runs it. `fuzz` sends randomly damaged messages, and `chaos` breaks processes.
"""
