"""The report of sweeps: tables, pictures and one page."""
