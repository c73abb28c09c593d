"""The suite of the mini models: lists, puzzles, sentences, records, tables, stories and sums, in many wordings."""
