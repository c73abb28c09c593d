"""Block schedules: which positions are open, in which order."""
