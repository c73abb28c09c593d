"""What every folder uses."""
