"""End-of-text policies: what happens to a row once it has committed an end-of-text token. One file per policy."""
