"""What a task is made of."""
