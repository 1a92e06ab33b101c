"""The step beside lightly, whose interpreter is a fake one."""

import sys

import pytest

from lab.benchmarks import peer

# Runs the program of lightly with a step of a test instead of its own.
_FAKE = """#!{python}
import importlib.metadata, json, os, sys
if sys.argv[1] == "-c":
    sys.exit()
importlib.metadata.version = lambda name: "9.9"
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import peer_program

def task(**case):
    print("a line of a package, on stdout")
    z = case.get("projections", [[], []])
    {start}
    return about, turn

TURNS = []

def turn():
    {turn}
    with open({folder!r} + "/turns", "a") as file:
        file.write("lightly ")
    return 50.0

peer_program.step = task
del sys.argv[0]
peer_program.main()
"""
_ABOUT = "about = {'settings': '3 gears', 'parameters': 12, 'loss': 0.5}"


@pytest.fixture
def python(tmp_path):
    """Makes an interpreter that `start` and `turn` describe."""

    def make(start=_ABOUT, turn="pass"):
        path = tmp_path / "python"
        facts = {"python": sys.executable, "folder": str(tmp_path)}
        path.write_text(_FAKE.format(**facts, start=start, turn=turn))
        path.chmod(0o755)
        return f"--peer_python={path}"

    return make


@pytest.fixture
def one_case(tmp_path, monkeypatch):
    """One case, whose own part is a number; returns what took turns."""

    def ours():
        with open(tmp_path / "turns", "a") as file:
            file.write("ours ")
        return 100.0

    facts = {"parameters": 12, "loss": 0.5}
    case = peer.Case("a step of the test", ours, facts, {})
    monkeypatch.setattr(peer, "cases", lambda *_: [case])
    return tmp_path / "turns"


def test_both_take_turns(benchmark, python, one_case):
    about = _ABOUT.replace("0.5", "0.500004")
    status, report = benchmark("peer", python(about), "--repeats=3")
    assert status == 0
    assert one_case.read_text() == 3 * "ours lightly "
    ours, lightly = report["results"]
    assert (ours["images_per_second"], ours["times_peer"]) == (100.0, 2.0)
    assert lightly["images_per_second"] == 50.0
    assert lightly["settings"] == "3 gears"
    assert lightly["versions"]["torch"] == "9.9"


@pytest.mark.parametrize(
    ("fake", "named"),
    [
        ({"start": "raise ValueError('one reason')"}, "ValueError: one reason"),
        ({"turn": "raise ValueError('one reason')"}, "ValueError: one reason"),
        # After the first turn.
        (
            {"turn": "TURNS and os.kill(os.getpid(), 9); TURNS.append(1)"},
            "SIGKILL",
        ),
        ({"start": _ABOUT.replace("12", "13")}, "parameters (ours: 12)"),
        ({"start": _ABOUT.replace("0.5", "0.50001")}, "loss (ours: 0.5)"),
        ({"start": _ABOUT.replace("0.5", "float('nan')")}, "loss (ours: 0.5)"),
    ],
)
def test_a_failure_is_a_note(fake, named, benchmark, python, one_case):
    status, report = benchmark("peer", python(**fake), "--repeats=3")
    assert status == 1 and report["passed"] is False
    lightly = report["results"][-1]
    assert lightly["failed"] and named in lightly["note"]
    assert lightly["images_per_second"] is None
    assert report["results"][0]["times_peer"] is None
