"""ParallelBench: tasks whose tokens depend on each other, so that too much parallel decoding costs accuracy."""
