"""One file per wire format; each maps its requests and replies to the same Turn."""
