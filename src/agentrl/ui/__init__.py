"""What people see of a run: live, in the terminal afterwards, and as a picture."""
