"""The laws that every combination of parts obeys, and a command that tries a part of your own under them."""
