"""What the README shows works as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

import sparsenet as sn
from sparsenet.testing.emulator import RaceError

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_beats_popularity_threefold(examples, tmp_path, monkeypatch, capsys):
    """Popularity reaches an NDCG@100 of 0.100 with this split; it is published beside the data."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(examples[0], names)
    split = names["split"]
    found = sn.evaluate(names["net"], split.test.fold_in, split.test.hidden, metrics=["ndcg@100"])
    assert found["ndcg@100"] > 0.3
    assert {path.name for path in tmp_path.iterdir()} == {"learning_curve.png", "model.nc"}
    assert names["purchases"].names[split.items[names["items"][0, 0]]] in capsys.readouterr().out


def test_the_own_activation(examples):
    x = sn.layers.Input(4)
    names = {"Dense": sn.layers.Dense, "x": x}
    exec(examples[1], names)
    net = sn.Network(x, names["h"], seed=1, device="cpu")
    z = np.eye(4, dtype=np.float32) @ net.weights["dense1/weight"]
    np.testing.assert_array_almost_equal_nulp(net.predict(np.eye(4)), z / (1 + abs(z)), nulp=4)


@pytest.mark.emulator
def test_the_race_is_found(examples):
    said = re.search(r"# (RaceError: .*) …", examples[2])
    assert said is not None
    with pytest.raises(RaceError) as caught:
        exec(examples[2], {"__name__": __name__})
    assert f"RaceError: {caught.value}".startswith(said[1])


def test_tables_are_filled():
    text = README.read_text(encoding="utf-8")
    for name in ("quality", "startup"):
        table = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
        assert table is not None
        assert "|---|" in table[1]
    quality = README.parent / "tests" / "benchmarks" / "quality.md"
    assert quality.read_text(encoding="utf-8") in text
