"""The names that OpenRLHF imports from flash-attn at start, in plain PyTorch: the real package needs a GPU."""
