"""What surrounds the core: python -m anyorder.extras.NAME."""
