"""Model folders: where initial weights come from, adapters over them, and their tokenizers."""
