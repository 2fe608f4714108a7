"""The geometry of a tile: what its parts compute, for every thread. Its products are tested in test_tiles.py."""

import itertools

import numpy as np
import pytest

from sparsenet.kernels.slabs import Tile

TILES = [Tile(16, each, precision, asynchronous, dtype)
         for each, (precision, asynchronous, dtype) in itertools.product((8, 4), [
             ("float32", False, np.float32), ("float32", True, np.float32), ("tf32", True, np.float32),
             ("bfloat16", True, np.float32), ("float32", False, np.float64)])]
each_tile = pytest.mark.parametrize("tile", TILES, ids=str)


@each_tile
def test_slabs_fit_into_shared_memory(tile):
    assert tile.threads == 256
    assert tile.stages >= 2
    assert 2 * tile.stages * tile.depth * tile.row * np.dtype(tile.dtype).itemsize <= 48 * 1024


@each_tile
def test_each_total_has_one_thread(tile):
    _, _, place = tile.arithmetic()
    seen = np.zeros((tile.edge, tile.edge), int)
    for t, n in itertools.product(range(tile.threads), range(tile.each * tile.each // 4)):
        row, column = place.function(n, t)
        assert column % 4 == 0
        seen[row, column:column + 4] += 1
    assert (seen == 1).all()


@each_tile
def test_warps_write_whole_sectors(tile):
    """Of 32 bytes, the least that a GPU's memory writes: two fours of elements."""
    _, _, place = tile.arithmetic()
    for first in range(0, tile.threads, 32):
        fours = {place.function(0, t) for t in range(first, first + 32)}
        assert len({(row, column // 8) for row, column in fours}) == len(fours) / 2
