"""Regular expressions of ECMA-262 under its ``u`` flag, as JSON Schema means them."""
