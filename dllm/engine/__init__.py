"""Where samples are decoded: in this process, in several, or on a cluster. The scores are the same."""
