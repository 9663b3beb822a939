"""Losses, one optimiser step, and the loop around it."""
