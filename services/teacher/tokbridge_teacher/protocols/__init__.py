"""Protocols: gRPC and HTTP, thin; one table of errors each."""
