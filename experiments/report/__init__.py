"""What a folder of results comes to: tables, pictures, one page. ``python -m experiments.report FOLDER``."""
