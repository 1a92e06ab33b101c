"""Contact sheet of the augmentation policies."""

import pytest
from PIL import Image

from lab.benchmarks import views


def test_a_contact_sheet_has_a_row_per_policy(benchmark, tmp_path, monkeypatch):
    three = {name: views.POLICIES[name] for name in ("simclr", "crop", "none")}
    monkeypatch.setattr(views, "POLICIES", three)
    monkeypatch.setattr(views, "OPERATIONS", ("noise",))
    plot = tmp_path / "views.png"
    status, report = benchmark("views", f"--plot={plot}", "--sheet_size=16")
    assert status == 0
    (row,) = report["results"]
    assert row["policies"] == ["simclr", "crop", "ablation:noise"]
    width, height = Image.open(plot).size
    assert height / width == pytest.approx(3 / 8, rel=0.02)
