"""Serving: the API that agents speak, sessions, stitching, access."""
