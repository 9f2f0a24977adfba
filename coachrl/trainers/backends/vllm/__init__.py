"""The backend of one process: vLLM generates, the embedded backend's trainer trains. Here `backend` and `engine` need
vLLM; import them inside functions only."""
