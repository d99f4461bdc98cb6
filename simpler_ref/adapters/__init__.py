"""What programs for other libraries need to run on a Worker; nothing else imports it."""
