"""The op `kda.packed_decode`: one token of Kimi Delta Attention for each request."""
