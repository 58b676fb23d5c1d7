"""KDA verification of draft tokens that leaves a snapshot of the state after each token."""
