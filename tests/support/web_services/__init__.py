"""Twelve endpoints of an ordinary service, written for several frameworks."""
