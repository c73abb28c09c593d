"""Where the samples of a cell are decoded: in this process, in several, or on a cluster."""
