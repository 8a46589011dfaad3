"""The management server, which is the daemon's HTTP server for operators (/metrics, dashboard), and the OTLP export.

The server runs in a thread with its own event loop, so that slow scrapers do not delay the dispatcher. To add a route,
add it in `routes` of management_server.py. May import: metrics, and everything that metrics may import.
"""
