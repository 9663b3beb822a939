"""Messages to token ids, sessions to samples, verdicts to per-token credit."""
