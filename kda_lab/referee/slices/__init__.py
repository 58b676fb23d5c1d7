"""Slice comparison: two profiles of the same model, cut at a marker kernel, laid side by side."""
