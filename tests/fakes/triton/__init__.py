"""Stand-ins for tritonserver: its HTTP side, its process, its API for the proxies."""
