"""DeepSpeed processes that train: what they are asked for, and what runs inside them."""
