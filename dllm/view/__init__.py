"""What a person sees: the canvas while it denoises, and the tables afterwards."""
