"""The Ray cluster: which GPUs a run reserves in it, who sits on which, and what is seen when it is gone."""
