"""What the programs share: tables, marked sections, refusals."""
