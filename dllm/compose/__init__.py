"""Builds parts from the configuration, and checks that they fit together."""
