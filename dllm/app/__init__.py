"""The application: ``python run.py``, from the command line to the files that a run leaves."""
