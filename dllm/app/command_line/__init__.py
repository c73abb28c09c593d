"""The words a user types."""
