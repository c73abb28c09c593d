"""The network and what a forward of it needs: attention, experts, rotary embeddings, memory."""
