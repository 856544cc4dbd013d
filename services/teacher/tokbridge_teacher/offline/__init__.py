"""What runs without a service: inspection, conformance, responses that the teacher writes."""
