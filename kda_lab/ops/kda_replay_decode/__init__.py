"""KDA decode from a checkpoint and a ring of records: a state that is written every L tokens only."""
