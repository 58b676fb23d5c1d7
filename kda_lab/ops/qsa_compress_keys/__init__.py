"""QSA compressed keys: raw index keys of a step become one normalised, rotated key a complete group of tokens."""
