"""How turns are run: eagerly, with bounded shapes, compiled, or as CUDA graphs."""
