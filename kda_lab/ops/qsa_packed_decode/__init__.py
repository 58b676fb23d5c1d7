"""QSA packed decode: one query row a sequence attends to its selected, compacted KV rows."""
