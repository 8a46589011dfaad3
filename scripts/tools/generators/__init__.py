"""Generate files from declarations in Python, so that everything is declared once."""
