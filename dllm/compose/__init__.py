"""Parts from the configuration, and whether they fit."""
