"""The loop and its data: rows, forwards, turns."""
