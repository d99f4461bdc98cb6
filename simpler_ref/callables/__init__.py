"""Functions that tasks call: what they are, and who has them."""
