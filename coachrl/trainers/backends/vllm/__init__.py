"""The backend of one process: vLLM generates, the embedded backend's trainer trains. Everything here but `shapes` and
`replies` needs vLLM; import it inside functions only.
"""
