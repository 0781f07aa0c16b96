"""Orders of voices x frames, for --order=results/chorales/bach.py:NAME.

A function gets uniform numbers u (B, voices * frames) and returns as many positions."""

import torch


def random_frames(u, shape, parameter):
    """Frames in a random order, the voices of a frame in a random order."""
    grid = u.view(-1, *shape)  # (B, voices, frames)
    place = grid.sum(1).argsort(1).argsort(1)  # (B, frames) of each frame
    within = grid * 997 % 1  # in [0, 1), other random numbers
    return (place.unsqueeze(1) + within).flatten(1).argsort(1)


def mixed(u, shape, parameter):
    """Half of the sequences in random order, the rest by frames, in time or at random."""
    frame = torch.arange(shape[1], device=u.device)
    chronological = (frame + u.view(-1, *shape)).flatten(1).argsort(1)
    kind = u[:, :1] * 1009 % 1
    by_frames = torch.where(kind < 0.75, chronological, random_frames(u, shape, None))
    return torch.where(kind < 0.5, u.argsort(1), by_frames)
