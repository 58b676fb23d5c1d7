"""QSA block expansion: from the ids of the chosen blocks to the tokens that a row attends to."""
