"""Rounding at random as bfloat16.py describes it, in whole numbers of Python and NumPy's wide ones."""

import numpy as np

_WORD, _LONG = 2**32 - 1, 2**64 - 1


def random_words(key, rows, columns, swapped=False):
    """bfloat16.random_bits of every place of an array; swapped: those that (high, low) gives."""
    words = np.zeros((rows, columns), np.uint64)
    for row in range(rows):
        x = (int(key) + (row + 1) * 0x9E3779B97F4A7C15) & _LONG
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _LONG
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _LONG
        x ^= x >> 31
        low, high = (x >> 32, x & _WORD) if swapped else (x & _WORD, x >> 32)
        y = (low + np.arange(columns, dtype=np.uint64) * np.uint64(0x9E3779B9)) & np.uint64(_WORD)
        y = (y ^ y >> 16) * np.uint64(0x85EBCA6B) & np.uint64(_WORD)
        y = (y ^ np.uint64(high) ^ y >> 13) * np.uint64(0xC2B2AE35) & np.uint64(_WORD)
        words[row] = y ^ y >> 16
    return words.astype(np.uint32)


def rounded_at_random(numbers, bits):
    """The upper halves of finite float32 numbers, up where the lower half and that of the bits carry over."""
    exact = np.asarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return ((exact + (bits & np.uint32(0xFFFF))) >> np.uint64(16)).astype(np.uint16)


def kept(w, slots, key):
    """(w, slots) of a step in float32, rounded as one in bfloat16 rounds them."""
    words, others = (random_words(key, *w.shape, swapped) for swapped in (False, True))
    of_slots = others, others >> np.uint32(16)
    slots = [rounded_at_random(slot, bits) for slot, bits in zip(slots, of_slots, strict=False)]
    return rounded_at_random(w, words), np.array(slots, np.uint16).reshape(-1, *w.shape)
