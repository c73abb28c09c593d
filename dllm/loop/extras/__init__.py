"""What a forward does for some decodes besides computing and scoring: one class each, with the same few hooks."""
