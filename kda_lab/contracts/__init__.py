"""Contracts: their model and published schema, the facts of a call, and the predicate that compares the two."""
