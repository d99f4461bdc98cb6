"""Tasks that are called like functions: their parameters, and what they return or raise."""
