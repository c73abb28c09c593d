"""Runs and sweeps: what they will do, and their folders."""
