"""Backends: run the teacher model and hand chunks of logits to the device pass."""
