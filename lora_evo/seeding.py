"""One random stream per (seed, operator, module name): the same child in any order, on any number of threads."""

import hashlib

import numpy as np


def stream(seed: int, *labels: str) -> np.random.Generator:
    """A generator that depends on `seed` and `labels` alone: Philox, keyed by their SHA-256.

    Args:
        seed: a non-negative integer of any size.
        labels: for a module's stream, the operator's name and the module's path.

    Raises:
        ValueError: if the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}, it must be 0 or more")
    digest = hashlib.sha256("\0".join([str(seed), *labels]).encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8")))
