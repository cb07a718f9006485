"""Small tables in text: reading, typed columns, queries."""
