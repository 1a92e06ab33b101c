"""Corruptions by noise: each value is changed by itself."""

import numpy as np


def gaussian_noise(x, scale, random):
    """Normal noise, the same everywhere."""
    return x + random.normal(size=x.shape, scale=scale)


def shot_noise(x, photons, random):
    """Counts of photons: the noise grows with the root of the light."""
    return random.poisson(x * photons) / float(photons)


def impulse_noise(x, share, random):
    """Salt and pepper, in equal parts, on a share of the values."""
    hit = random.random_sample(x.shape) <= share
    salt = random.random_sample(x.shape) <= 0.5
    return np.where(hit, salt.astype(np.float64), x)


def speckle_noise(x, scale, random):
    """Normal noise, in proportion to each value."""
    return x + x * random.normal(size=x.shape, scale=scale)
