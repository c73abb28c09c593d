"""Block schedules: which positions are open, in which order. One file per schedule."""
