"""Durable memory: the store of turns, keys, and what is exported from it."""
