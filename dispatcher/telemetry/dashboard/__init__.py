"""The daemon's dashboard for browsers: its content as JSON, and the static files of the page.

Pure functions turn metrics and models into documents; only `routes` uses the web server. The page in `static/` is plain
HTML, CSS and JavaScript without a build step or external resources. It inserts model texts as text, never as HTML.
"""
