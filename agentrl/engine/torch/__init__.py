"""The embedded engine: Hugging Face models on the device that is there."""
