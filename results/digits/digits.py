"""Digits of 8 x 8 pixels in 17 levels: python results/digits/digits.py

digits.npz has the pixels, labelled.npz also the digit as a 65th token, whose names are in
labelled.txt, half.npy the upper halves of 16 test images with blanks below. Wants scikit-learn."""

import numpy as np
from sklearn.datasets import load_digits

N_LEVELS = 17  # the ids of the pixels; those of the 10 digits follow

digits = load_digits()
images = digits.data.astype(np.uint16)  # (1797, 64)
classes = N_LEVELS + digits.target.astype(np.uint16)
labelled = np.column_stack([images, classes])
shuffled = np.random.default_rng(1337).permutation(len(images))
splits = {'train': shuffled[:1397], 'val': shuffled[1397:1597], 'test': shuffled[1597:]}
np.savez_compressed('digits.npz', **{name: images[rows] for name, rows in splits.items()})
np.savez_compressed('labelled.npz', **{name: labelled[rows] for name, rows in splits.items()})

half = images[splits['test'][:16]].astype(int)
half[:, 32:] = -1  # blanks
np.save('half.npy', half)

names = [str(level) for level in range(N_LEVELS)] + [f'is-{digit}' for digit in range(10)]
np.savetxt('labelled.txt', names, fmt='%s')
