"""Rollouts in the form that trainers expect, one module for each; nothing here is imported by the package."""
