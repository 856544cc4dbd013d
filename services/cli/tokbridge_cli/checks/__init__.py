"""Checks of a running teacher, for operators."""
