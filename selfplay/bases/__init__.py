"""Base models by name."""
