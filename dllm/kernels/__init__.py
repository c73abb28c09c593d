"""Fused operations. Each file that has a Triton kernel holds one operation, and the same names in the same order:

- ``reference``: the operation in plain torch. It is the definition, and what a CPU runs.
- the kernel: a private function under ``@jit``.
- the launcher, named after the operation: ``reference``, or with ``triton=True`` the kernel. Both give the same result
  within the rounding that the docstring states.
- ``BUILDS``: the configurations that we ship. The launcher launches no other, and the tests compile all of them ahead
  of time.

The other files serve these: ``jit`` (Triton at the first launch), ``dispatch`` (which kernels run), ``packed`` (the
CPU's weight layout), ``invariant`` (products of one size).
"""
