"""vLLM engines: how they are started and asked, and how weights get into them."""
