"""Reinforcement learning of a model by rewards that are checked: ``python -m experiments.rl``."""
