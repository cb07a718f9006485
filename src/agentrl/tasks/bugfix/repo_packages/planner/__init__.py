"""A planner: times of day, busy spans, free slots for a meeting."""
