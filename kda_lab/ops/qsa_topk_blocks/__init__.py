"""QSA top-k blocks: the best-scored compressed keys of each row, as block ids."""
