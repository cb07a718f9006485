"""How fast tokens are generated: our engine and its peers on the same weights and the same work."""
