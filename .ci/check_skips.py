"""Fails if a skipped test is not in the allow-list.

Use: check_skips.py JUNIT_XML ALLOWED_SKIPS

Each line of the allow-list is `PATTERN # REASON`; the pattern is a test's node
id, with * and ? as wildcards.
"""

import fnmatch
import pathlib
import sys
import xml.etree.ElementTree


def allowed_patterns(path: str) -> list[str]:
    """Reads the patterns of an allow-list; a pattern needs a reason."""
    patterns = []
    for line in pathlib.Path(path).read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.partition(" # ")
        if not reason.strip():
            raise SystemExit(f"{path}: no reason for {pattern.strip()!r}")
        # Brackets are those of a parametrized test, not a set of characters.
        patterns.append(pattern.strip().replace("[", "[[]"))
    return patterns


def main(report: str, allow_list: str) -> int:
    """Prints each skipped test that is not allowed; returns the exit status."""
    patterns = allowed_patterns(allow_list)
    status = 0
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        node = f"{case.get('file')}::{case.get('name')}"
        for skipped in case.findall("skipped"):
            if not any(fnmatch.fnmatchcase(node, x) for x in patterns):
                reason = skipped.get("message", "")
                print(f"skipped, but not in {allow_list}: {node}: {reason}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
