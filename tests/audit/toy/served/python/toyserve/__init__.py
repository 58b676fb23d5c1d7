"""A toy serving package: the branch that an export serves."""
