"""Decoupled models: the loops that run streams, and how their answers go out.

Belongs here: any number of answers to one request.
"""
