"""Words that the mini models know, how their tasks are asked, and whether a prompt is one of these."""
