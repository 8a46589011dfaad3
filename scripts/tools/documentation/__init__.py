"""Check the documents, and generate pages of the site from code. See scripts/docs."""
