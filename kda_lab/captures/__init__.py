"""Captures: the tensors of real and synthetic calls, recorded, kept, checked and loaded."""
