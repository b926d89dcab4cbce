"""The co-evolution game over the toolkit."""
