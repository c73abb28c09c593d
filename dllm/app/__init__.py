"""The application: command line, commands, jobs, engines."""
