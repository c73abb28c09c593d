"""Published tensors to the network: names, files, shares of ranks, fewer bits, adapters."""
