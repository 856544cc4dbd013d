"""Routing: which student token the bytes of a teacher token begin with, compiled once a pair."""
