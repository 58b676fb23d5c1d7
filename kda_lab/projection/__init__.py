"""Fusing the projections in front of Kimi Delta Attention: when it is done, how weights are built, what it brings."""
