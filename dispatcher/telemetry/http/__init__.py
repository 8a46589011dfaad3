"""The OTLP export, and the management server: the daemon's HTTP server for operators (/metrics, dashboard).

The server runs in a thread with its own event loop, so that slow scrapers do not delay the dispatcher. To add a route,
add it in `routes` of management_server.py. May import: metrics, and everything that metrics may import.
"""
