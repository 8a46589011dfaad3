"""Files that are made from declarations elsewhere: what two languages must agree on is said once."""
