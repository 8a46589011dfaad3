"""The daemon's page for browsers: what it shows, as JSON, and the files of the page itself.

Pure functions make documents out of figures and models; only `routes` knows the web server. The page in `static/` is
plain HTML, CSS and JavaScript, without a build and without anything from elsewhere. It writes text of models as text.
"""
