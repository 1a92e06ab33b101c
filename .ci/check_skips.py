"""Fails if a test was skipped that the allow-list does not name.

Use: check_skips.py JUNIT_XML ALLOWED_SKIPS
"""

import fnmatch
import pathlib
import sys
import xml.etree.ElementTree


def allowed_patterns(path: str) -> list[str]:
    """Reads the lines `pattern # reason`; each pattern needs its reason."""
    patterns = []
    for line in pathlib.Path(path).read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.partition(" # ")
        if not reason.strip():
            raise SystemExit(f"{path}: no reason given for {pattern.strip()!r}")
        patterns.append(pattern.strip())
    return patterns


def skipped_tests(path: str) -> list[tuple[str, str]]:
    """Reads (node id, reason) of each skipped test of a report of pytest."""
    found = []
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        for skipped in case.findall("skipped"):
            name = case.get("name", "")
            file = case.get("file", "")
            node = f"{file}::{name}" if file else name
            found.append((node, skipped.get("message", "")))
    return found


def matches(node: str, pattern: str) -> bool:
    """Whether a node id fits a pattern; brackets stand for themselves."""
    return fnmatch.fnmatchcase(node, pattern.replace("[", "[[]"))


def main(report: str, allow_list: str) -> int:
    """Prints each skipped test that is not allowed; returns how many."""
    patterns = allowed_patterns(allow_list)
    refused = [
        (node, reason)
        for node, reason in skipped_tests(report)
        if not any(matches(node, pattern) for pattern in patterns)
    ]
    for node, reason in refused:
        print(f"skipped, and not in {allow_list}: {node}: {reason}")
    return len(refused)


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
