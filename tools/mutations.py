"""Changes one line of the package at a time: a quick test must notice each.

The table is `mutations.txt`. Every mutation is made in a copy of the tree,
where its tests run, quick ones only, until the first fails. Results are added
to a file as they come: started again, the program goes on after the last. A
text that is not there exactly once is named and skipped.

    python tools/mutations.py --out=killed.tsv [--tree=PATH] [--only=TEXT]

It ends with status 0 if all mutations are killed.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SECONDS = 300
_COPIED = ("tf_contrastive", "tests", "lab", "tools", "configs")
_HERE = Path(__file__).resolve().parent


def read() -> Iterator[tuple[str, str, str, str]]:
    """Yields a file of the package, tests, a text and its replacement."""
    file = tests = ""
    for line in (_HERE / "mutations.txt").read_text().splitlines():
        if header := re.fullmatch(r"\[(\S+\.py): (.*)\]", line):
            file, tests = header.groups()
        elif not line.startswith("# "):
            text, replacement = line.split(" => ")
            yield file, tests, text, replacement


def outcome(folder: Path, tests: str) -> str:
    """Runs tests: "killed", "survived", or what went wrong."""
    words = [
        f"tests/{w}" if w.endswith("_test.py") else w
        for w in shlex.split(tests)
    ]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", *words]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "killed"  # A loop that does not end.
    if done.returncode in (1, 2):
        return "killed"
    return "survived" if done.returncode == 0 else f"status {done.returncode}"


def try_out(
    folder: Path, file: str, text: str, replacement: str, tests: str
) -> str:
    """Makes a mutation in the copy of the tree, and takes it back."""
    path = folder / "tf_contrastive" / file
    original = path.read_text() if path.exists() else ""
    if original.count(text) != 1:
        return f"text is there {original.count(text)} times"
    path.write_text(original.replace(text, replacement))
    try:
        return outcome(folder, tests)
    finally:
        path.write_text(original)


def main() -> int:
    """Runs all mutations that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=_HERE.parent)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="text in the file's name")
    options = parser.parse_args()
    results = {}
    if options.out.exists():
        lines = options.out.read_text().splitlines()
        results = dict(line.split("\t")[::-1] for line in lines)
    with tempfile.TemporaryDirectory() as name, options.out.open("a") as out:
        folder = Path(name)
        for part in _COPIED:
            shutil.copytree(options.tree / part, folder / part)
        for part in ("setup.py", "pyproject.toml"):
            shutil.copy(options.tree / part, folder / part)

        def record(name: str, result: str) -> str:
            results[name] = result
            print(f"{result}\t{name}", flush=True)
            out.write(f"{result}\t{name}\n")
            out.flush()
            return result

        for file, tests, text, replacement in read():
            name = f"{file}: {text} => {replacement}"
            if name in results or options.only not in file:
                continue
            # Tests that fail anyway would kill every mutation.
            base = f"unchanged: {tests}"
            result = results.get(base) or record(base, outcome(folder, tests))
            if result != "survived":
                record(name, f"the unchanged tests: {result}")
                continue
            result = try_out(folder, file, text, replacement, tests)
            record(name, result)
    found = [r for n, r in results.items() if not n.startswith("unchanged")]
    for result in sorted(set(found)):
        print(f"{found.count(result):4} {result}")
    return int(any(result != "killed" for result in found))


if __name__ == "__main__":
    sys.exit(main())
