"""Languages over bytes: written as trees, compiled to one minimal automaton."""
