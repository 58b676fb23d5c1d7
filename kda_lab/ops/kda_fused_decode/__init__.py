"""The op `kda.fused_decode`: a raw token of each request from the projections to the output projection."""
