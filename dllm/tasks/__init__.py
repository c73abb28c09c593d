"""Tasks to measure a decoder on: data, prompt, parse, score."""
