"""What the commands share: orders, generation, likelihood, checkpoints, devices, files and tables; one noun a file."""
