"""The teacher's prompt: its own template, and the thinking seam to the response."""
