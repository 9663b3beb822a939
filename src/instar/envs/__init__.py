"""Worlds that agents act in; each is a client of the gateway."""
