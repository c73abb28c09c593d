"""The claims that methods' papers stand on, measured on the demo models. ``__main__`` says how."""
