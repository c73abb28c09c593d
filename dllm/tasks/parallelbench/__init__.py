"""ParallelBench: tasks whose tokens depend on each other, so that reckless parallel decoding fails visibly."""
