"""Trainer: samples from the student, pulls targets, projects and learns; orchestrated by Ray."""
