"""Tasks that are submitted many at a time: in columns, recorded, compiled."""
