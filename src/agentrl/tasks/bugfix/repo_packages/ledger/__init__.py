"""A ledger: amounts of money as text, bookings between accounts, statements."""
