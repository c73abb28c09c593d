"""The suite of the mini models: lists, puzzles, sentences and records, in many wordings."""
