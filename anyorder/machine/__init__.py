"""Disk, terminal, device, processes."""
