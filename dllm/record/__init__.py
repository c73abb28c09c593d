"""What a decode leaves behind."""
