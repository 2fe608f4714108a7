"""Names of random streams: every random number is a function of (seed, name, step, index) and of nothing else."""

import hashlib

import numpy as np


def stream_key(seed: int, name: str, step: int = 0) -> np.uint64:
    """64-bit key of the stream that belongs to a seed, a tensor's name and a training step.

    Raises TypeError unless seed is an integer: an implicit seed would not be reproducible.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed: expected an integer, got {seed!r}")
    text = f"{int(seed)}/{name}/{int(step)}"
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
