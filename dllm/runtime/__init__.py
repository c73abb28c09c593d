"""How turns are run, beside eagerly."""
