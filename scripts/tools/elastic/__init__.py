"""Scaling: a simulation of the autoscaling policy (`simulate`), and measurements with a real daemon (`bench`)."""
