"""QSA block scores: each query row scores the compressed keys of its request, read through its pages."""
