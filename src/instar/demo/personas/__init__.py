"""People to learn from: each file has `prompts`, `score` (for the report only) and `respond`."""
