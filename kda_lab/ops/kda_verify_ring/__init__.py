"""KDA verification of draft tokens that leaves a ring of the tokens, from which a fold makes the state."""
