"""An OpenAI- and Anthropic-compatible endpoint for a team: the model's name of a call says which role answers."""
