"""The op `kda.chunk_prefill`: Kimi Delta Attention over whole prompts, packed, with states updated in place."""
