"""The documentation site: pages that are made from the code, and pages from outside of docs/; see scripts/docs."""
