"""What a user types, until it is a checked configuration, and the sentences that refuse it."""
