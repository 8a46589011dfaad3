"""The daemon's own HTTP server for operators: /metrics and the dashboard.

It runs in a thread with its own event loop, so that a slow scraper does not delay the dispatcher, nor a busy dispatcher
the scraper. Add routes in `routes` of management_server.py. May import metrics, and everything that metrics may import.
"""
