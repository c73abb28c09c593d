"""Certainty-forcing distillation (dParallel, arXiv 2509.26488): a model learns to be sure of what it decodes slowly.

Read ``masking.py`` and ``loss.py`` first: they are the method. ``__main__.py`` is the order of a run.
"""
