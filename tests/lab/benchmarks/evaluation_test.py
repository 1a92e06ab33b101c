"""Benchmark of evaluation: neighbours and logistic paths agree."""

import numpy as np

from lab.benchmarks import evaluation

_WORDS = (
    "evaluation --repeats=1 --nomemory --queries=60 --bank=300"
    " --bank_dimension=32 --path_examples=300 --path_dimension=12"
    " --path_penalties=5"
)


def test_wrong_neighbours_and_objectives_fail(benchmark, monkeypatch):
    def changed(make, change):
        def wrong(case):
            call = make(case)
            return lambda: change(call())

        def nan(case):
            return lambda: np.nan * make(case)()

        return {"ours": make, "wrong": wrong, "nan": nan}

    for task, makers in (
        ("knn", changed(evaluation.our_neighbors, lambda x: np.roll(x, 1))),
        ("logistic", changed(evaluation.our_path, lambda x: x / 1.001)),
    ):
        wrong = evaluation.TASKS[task]._replace(implementations=makers)
        monkeypatch.setitem(evaluation.TASKS, task, wrong)
    status, report = benchmark(*_WORDS.split())
    assert status == 1
    notes = [row["note"] for row in report["results"]]
    assert "differs from ours: predictions by" in notes[1]
    assert "differs from ours: objective by 1.0e-03" in notes[4]
    assert "differs from ours: objective by nan" in notes[5]
