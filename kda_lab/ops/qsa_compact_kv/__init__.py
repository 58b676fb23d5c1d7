"""QSA compaction: the KV rows of the selected tokens, copied from the paged pools into packed buffers."""
