"""Carries requests to the engine and its responses back; knows nothing of what they mean."""
