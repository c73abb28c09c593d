"""Parts that say how long an answer is."""
