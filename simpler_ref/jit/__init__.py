"""The hot path: plain functions over one array of words, compiled or interpreted: see `kernel`."""
