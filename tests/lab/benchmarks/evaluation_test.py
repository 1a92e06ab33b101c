"""Benchmark of evaluation: neighbours and logistic paths agree."""

import numpy as np

from lab.benchmarks import evaluation

_EVALUATION = (
    "evaluation",
    "--repeats=1",
    "--nomemory",
    "--queries=60",
    "--bank=300",
    "--bank_dimension=32",
    "--path_examples=300",
    "--path_dimension=12",
    "--path_penalties=5",
)


def test_evaluation_compares_with_scikit_learn(benchmark, capsys):
    status, report = benchmark(*_EVALUATION)
    assert status == 0
    rows = {(r["task"], r["implementation"]): r for r in report["results"]}
    assert list(rows) == [
        (task, name)
        for task in ("knn", "logistic")
        for name in ("ours", "scikit-learn")
    ]
    assert rows["knn", "scikit-learn"]["errors"]["predictions"] < 1e-3
    assert rows["logistic", "scikit-learn"]["errors"]["objective"] < 1e-4
    assert rows["knn", "scikit-learn"]["times_ours"] > 0
    shown = capsys.readouterr().out
    assert "5NN of 60 against 300 embeddings of 32" in shown
    assert "5 penalties on 300 embeddings of 12" in shown


def test_wrong_neighbours_and_objectives_fail(benchmark, monkeypatch):
    def changed(make, change):
        def wrong(case):
            call = make(case)
            return lambda: change(call())

        return {"ours": make, "wrong": wrong}

    for task, makers in (
        ("knn", changed(evaluation.our_neighbors, lambda x: np.roll(x, 1))),
        ("logistic", changed(evaluation.our_path, lambda x: x / 1.001)),
    ):
        wrong = evaluation.TASKS[task]._replace(implementations=makers)
        monkeypatch.setitem(evaluation.TASKS, task, wrong)
    status, report = benchmark(*_EVALUATION)
    assert status == 1
    notes = [row["note"] for row in report["results"]]
    assert "differs from ours: predictions by" in notes[1]
    assert "differs from ours: objective by 1.0e-03" in notes[3]
