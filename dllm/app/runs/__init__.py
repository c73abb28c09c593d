"""One run or sweep: its plan before weights are read, its samples, and the folder that keeps them."""
