"""What nothing else in the package imports: each folder can be read, changed or deleted by itself."""
