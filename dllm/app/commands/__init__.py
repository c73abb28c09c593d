"""What ``task=`` starts: a command is a function ``run(config, given)`` of a file here."""
