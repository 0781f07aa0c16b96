"""What the commands share: orders, generation, likelihood, checkpoints, devices, processes, files and tables; one noun a file."""
