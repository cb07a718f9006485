"""A shop: what is in stock, what orders take from it, what must be bought."""
