"""What the operating system gives: cores, signals, shared memory."""
