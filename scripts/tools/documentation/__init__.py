"""The documents: checks of links, names, commands and tutorials; pages of the site that are made from the code; see scripts/docs."""
