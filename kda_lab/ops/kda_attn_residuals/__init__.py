"""Attention residuals: a softmax mix of earlier block snapshots and the running residual stream, then RMSNorm."""
