"""All that the commands share: what one works with, and a room for each question behind it."""
