"""What a run will need of memory and time, before it starts: its own code, run on shapes alone."""
