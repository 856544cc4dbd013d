"""What teacher service, client and trainer share: vocabularies, targets, errors, the client."""

__version__ = "0.1.0"
