"""The daemon's own HTTP server, for those who operate it: /metrics.

It runs in a thread with an event loop of its own, so that neither holds up the other: a slow scraper the dispatcher, or
a busy dispatcher the scraper. A further route is a line in `routes` of operations_server.py. It imports figures and
what stands below it.
"""
