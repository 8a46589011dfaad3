"""Decoupled models: the loops that run streams, and how their answers are sent.

Holds what is needed for any number of answers to one request.
"""
