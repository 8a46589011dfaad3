"""Releases: what a version needs before it is published, its files, and the list of what would go out.

`state.py` looks at the repository, `artifacts.py` builds and checks the files, `__main__.py` tells.
"""
