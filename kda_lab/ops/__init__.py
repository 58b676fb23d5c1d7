"""What each operator computes: one folder an op, found by its name."""
