"""Rollouts: the student writes responses."""
