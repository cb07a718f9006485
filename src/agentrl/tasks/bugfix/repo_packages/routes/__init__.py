"""Routes on a map of roads with lengths."""
