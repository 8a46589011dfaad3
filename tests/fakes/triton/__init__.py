"""Fakes of tritonserver: its HTTP side, its process, and its API for the proxies."""
