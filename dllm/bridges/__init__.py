"""Other people's programs: transformers' ``generate`` and trainers."""
