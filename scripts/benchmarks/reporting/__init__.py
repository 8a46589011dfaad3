"""From measurements to a report: figures, targets, plots."""
