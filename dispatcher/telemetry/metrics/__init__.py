"""Figures: all that the daemon counts and measures, in one snapshot for all users: `status`, `top`, the page, /metrics.

Read from the pages that workers write (gauges), from the registry and from /proc: nobody is asked, so nobody is
waited for.
It imports what stands below it: models, workers, triton, control, base, settings.
"""
