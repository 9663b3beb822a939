"""Reads the store and shows it."""
