"""What this machine can run."""

import importlib.util


def is_dense_attention_available() -> bool:
    """Whether the dense backend is installed."""
    return importlib.util.find_spec("torch") is not None


def is_sparse_attention_available() -> bool:
    """Whether the sparse backend is installed."""
    return importlib.util.find_spec("toy_sparse") is not None
