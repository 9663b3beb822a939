"""Turns what happened next into verdicts and hints."""
