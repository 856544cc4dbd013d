"""Teacher service: bytes of a student response in, sparse targets on the student vocabulary out."""
