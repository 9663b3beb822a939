"""Versions of the weights: written atomically, gated, swapped in."""
