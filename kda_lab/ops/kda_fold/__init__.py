"""KDA fold: states after the accepted draft tokens of each request, in all layers, from the ring of verification."""
