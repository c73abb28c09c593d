"""Rows under constraints in the loop: proposals that fit, commits that go together, cuts that leave a text."""
