"""The running batch: jobs, scheduler, lanes, ranks that follow."""
