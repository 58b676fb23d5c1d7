"""The export auditor: what a partial export lost against the branch it serves, found without a GPU."""
