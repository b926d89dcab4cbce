"""What runs inside the workers. Standard library only, and nothing from outside this folder: workers start bare."""
