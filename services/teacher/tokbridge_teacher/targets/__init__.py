"""Targets: alignment and plan, the device pass, corrections and truncation on the host."""
