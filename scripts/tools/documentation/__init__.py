"""Checks of the documents (links, names, commands, tutorials), and pages of the site generated from code; see scripts/docs."""
