"""The daemon's settings: declared once, read from file, environment and flags, checked, shown, read anew.

Belongs here: what a setting is and where its value comes from. May import: nothing of the dispatcher's.
"""
