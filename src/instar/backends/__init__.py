"""One file per system behind a protocol."""
