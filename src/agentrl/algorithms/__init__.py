"""Credit and objectives: from the rewards of a group to one scalar loss."""
