"""The dashboard for browsers: its content as JSON, and the static files of its page.

Pure functions turn metrics and models into JSON documents; only `routes` uses the web server. The page in `static/` is
plain HTML, CSS and JavaScript, without a build step or external resources. It inserts texts of models as text, never as
HTML.
"""
