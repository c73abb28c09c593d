"""Words that people bring from other programs, and what says the same here."""
