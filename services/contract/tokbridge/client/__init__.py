"""The teacher client."""
