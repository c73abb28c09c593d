"""The report of sweeps: tables, pictures and one page. ``python -m experiments.report FOLDER ...``."""
