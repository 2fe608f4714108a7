import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.idle import catch_up
from sparsenet.optimizers import adam, momentum, rmsprop, sgd
from sparsenet.testing.strategies import dense
from tests.functions import USERS_IDLE

IDLES = {"sgd": (sgd(l2=0.5).idle, 0), "momentum": (momentum().idle, 1), "rmsprop": (rmsprop().idle, 1),
         "adam": (adam().idle, 2), "user's": (USERS_IDLE, 2)}


def draw_rows(data, sizes, idle, count, listed):
    """Arguments of catch_up: of rows that have seen all steps too, and of rows that are about to see the next."""
    features, units, made = data.draw(sizes()), data.draw(sizes()), data.draw(st.integers(0, 6))
    steps = data.draw(st.lists(st.integers(0, made + 1), min_size=features, max_size=features))
    named = data.draw(st.lists(st.integers(0, features - 1), unique=True)) if listed and features else []
    table = np.full((data.draw(st.integers(made + 1, made + 3)), 8), np.nan, np.float32)
    table[:made + 1, :len(idle.none)] = data.draw(dense(made + 1, len(idle.none), low=0.125))
    return (idle.rule, np.array([*named, -7, -7], np.int32) if listed else None, np.array([len(named)]),
            np.array([made], np.int32), table, data.draw(dense(features, units)),
            data.draw(dense(count, features, units, low=0.125)), np.array(steps, np.int32), len(idle.none))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("name", IDLES)
def test_catch_up(name, listed, prove, agree, sizes):
    @prove
    def example(data):
        agree(catch_up, *draw_rows(data, sizes, *IDLES[name], listed), outputs="w slots seen")


def test_shapes_are_checked(device):
    few = device.zeros(1, np.int32)
    with pytest.raises(ValueError, match="seen: axis 'features' is 1, but w says 2"):
        catch_up(sgd(l2=0.5).idle.rule, None, few, few, device.zeros((3, 8)), device.zeros((2, 4)),
                 device.zeros((0, 2, 4)), few, 1)
    with pytest.raises(ValueError, match="table: axis 'most' is 7, but room says 8"):
        catch_up(sgd(l2=0.5).idle.rule, None, few, few, device.zeros((3, 7)), device.zeros((1, 4)),
                 device.zeros((0, 1, 4)), few, 1)
