"""QSA paged decode: one query row a sequence attends to its selected tokens, read straight from the paged pool."""
