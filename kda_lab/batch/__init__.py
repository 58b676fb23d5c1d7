"""Running notebooks without a person: typed parameters, one fresh kernel, a time limit, resume, an exit code."""
