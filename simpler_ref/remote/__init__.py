"""Level 3 Workers on other machines: so far the bytes of their protocol, and nothing that sends them."""
