"""What samples tokens."""
