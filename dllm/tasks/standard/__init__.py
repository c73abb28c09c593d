"""Tasks that everybody reports: lm-evaluation-harness's own, maths and code with scorers of ours, and JSON lines."""
