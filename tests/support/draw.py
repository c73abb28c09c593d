"""Which tests ``--share`` keeps."""

from random import Random


def drawn_by(seed: str, name: str) -> float:
    """A number below 1 for a test. The laws of a case share its decode, so all tests of one case get one number."""
    test, bracket, case = name.partition("[")
    return Random(f"{seed} {case if bracket else test}").random()
