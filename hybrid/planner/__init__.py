"""Machine and model in, plan with reasons out."""
