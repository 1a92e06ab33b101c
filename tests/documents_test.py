"""The documents: every command, flag, path, link, number and snippet in them.

A command is parsed and checked as the command line does it; what it would do
is tried, on little data, for those of the main job.
"""

import ast
import builtins
import functools
import importlib
import json
import re
import shlex
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import __main__, flags, training
from tf_contrastive.config import fields as config_fields
from tf_contrastive.config.evaluate import Evaluate, evaluate

_ROOT = Path(__file__).resolve().parents[1]
# Written by `reproduce --report`, from what came out.
_GENERATED = _ROOT / "docs" / "RESULTS.md"
_DOCUMENTS = {
    str(path.relative_to(_ROOT)): path.read_text("utf-8")
    for path in sorted(
        [
            _ROOT / "README.md",
            _ROOT / "CONTRIBUTING.md",
            *(_ROOT / "docs").rglob("*.md"),
        ]
    )
    if path != _GENERATED
}
_GUIDE = {k: v for k, v in _DOCUMENTS.items() if k.startswith("docs/")}
_MODULE = "python -m tf_contrastive "
_SCRIPTS = {
    path.name: path.read_text("utf-8")
    for path in (_ROOT / "launch").iterdir()
    if path.is_file()
}
# Of other programs, and those that every command has.
_OTHER_FLAGS = {"--logdir", "--help", "--helpfull", "--flagfile"}
# Stands in a document for what a reader puts there.
_PLACEHOLDER = re.compile(r"\b[A-Z]+(_[A-Z]+)*\b|\.\.\.")


def _fences(text):
    """(language, content) of every fenced block."""
    found = re.findall(
        r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL
    )
    return [
        (language, re.sub(rf"^{indent}", "", content, flags=re.MULTILINE))
        for indent, language, content in found
    ]


def _prose(text):
    """A document without its fenced blocks."""
    return re.sub(
        r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL
    )


def _spans(text):
    """What stands between backticks outside of fenced blocks, on one line."""
    found = re.findall(r"`([^`]+)`", _prose(text))
    return [" ".join(span.split()) for span in found]


def _lines(text):
    """Every line that a shell would read."""
    blocks = [c for language, c in _fences(text) if language in ("", "sh")]
    return [*"\n".join(blocks).splitlines(), *_spans(text)]


def _words(line):
    """The words of a command, up to a comment or the shell's next one."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [i for i, word in enumerate(words) if re.fullmatch("[;|&]+", word)]
    return words[: min(ends, default=len(words))]


def _commands(text):
    """The words after `python -m tf_contrastive`, of every such command."""
    found = []
    for line in _lines(text):
        _, module, rest = line.partition(_MODULE)
        if module and not _PLACEHOLDER.match(rest):
            found.append(_words(rest))
    return found


def _launches(text):
    """(script, its words) of every launch script that is called."""
    found = []
    for line in _lines(text):
        if match := re.match(r"(?:\./)?launch/(\w+)( .*)?$", line):
            found.append((match[1], _words(match[2] or "")))
    return found


def _unique(of_text):
    """(document, item) of all documents, each item once."""
    found = {}
    for name, text in _DOCUMENTS.items():
        for item in of_text(text):
            shown = " ".join(str(item).split())[:60]
            param = pytest.param(item, id=f"{name}: {shown}")
            found.setdefault(str(item), param)
    return list(found.values())


@pytest.fixture
def command_line(monkeypatch):
    """Words -> (command, config) that the command line would run."""
    monkeypatch.chdir(_ROOT)
    called = []

    def module(name):
        command = name.rpartition(".")[2]
        return types.SimpleNamespace(
            run=lambda parsed: called.append((command, parsed)) or 0
        )

    def parse(words):
        called.clear()
        monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
        with monkeypatch.context() as patched:
            patched.setattr(importlib, "import_module", module)
            status = __main__.main()
        return status, called[-1] if called else None

    return parse


# ---- Commands ---------------------------------------------------------------


def _of_a_run(words):
    """The words, without a flagfile that a run is yet to write."""
    return [w for w in words if not w.startswith("--flagfile=runs/")]


@pytest.mark.parametrize("words", _unique(_commands))
def test_a_command_is_one_that_runs(words, command_line, capsys):
    status, called = command_line(_of_a_run(words))
    assert status == 0, capsys.readouterr().err
    assert called or "--help" in words


@pytest.mark.parametrize("call", _unique(_launches))
def test_a_launch_script_takes_what_it_is_given(call, command_line, capsys):
    script, words = call
    assert script in _SCRIPTS, f"there is no launch/{script}"
    text = _SCRIPTS[script]
    place = next(
        (i for i, w in enumerate(words) if w in __main__.COMMANDS), len(words)
    )
    for word in words[:place]:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert re.search(rf"{option}\b", text), f"{script} has no {option}"
    if place < len(words) and "..." not in words:
        status, _ = command_line(words[place:])
        assert status == 0, capsys.readouterr().err


def test_commands_are_found():
    assert len(_unique(_commands)) > 40
    assert {call.values[0][0] for call in _unique(_launches)} > {
        "quickstart",
        "tpu_vm",
        "slurm",
        "multiworker",
        "serve",
    }


# ---- Flags, paths and links -------------------------------------------------


def _fields(command):
    config_class, _ = __main__.COMMANDS[command]
    return {f.name: f for _, f, _ in config_fields.fields(config_class())}


def _problem(flag, commands):
    """What is wrong with `--name` or `--name=value`, or None."""
    name, equals, value = flag.removeprefix("--").partition("=")
    takers = [fields for c in commands if name in (fields := _fields(c))]
    if name.endswith("*"):
        start = name.removesuffix("*")
        known = [n for c in commands for n in _fields(c)]
        return None if any(n.startswith(start) for n in known) else "no flag"
    if not takers:
        off = name.removeprefix("no")
        fields = [f for c in commands if (f := _fields(c).get(off))]
        if off != name and any(flags._type(f) is bool for f in fields):
            return None
        return f"no flag of {', '.join(commands)}"
    if not equals or not value or _PLACEHOLDER.search(value):
        return None
    problems = [_value_problem(fields[name], value) for fields in takers]
    return None if None in problems else problems[0]


def _value_problem(field, value):
    kind = flags._type(field)
    for one in value.split("|"):
        try:
            read = one if kind in (str, bool) else kind(one)
        except ValueError:
            return f"{one} is no {kind.__name__}"
        if allowed := config_fields.problem(field, read):
            return f"must be {allowed}"
    return None


def _flagged(text):
    """Spans with flags, but for whole commands and launch scripts."""
    return [
        span
        for span in _spans(text)
        if re.search(r"(^| )--\w", span)
        and _MODULE.strip() not in span
        and not re.match(r"(\./)?(launch|examples)/|pip |tensorboard ", span)
    ]


@pytest.mark.parametrize("span", _unique(_flagged))
def test_a_flag_is_one_that_a_command_takes(span):
    words = span.split()
    commands = list(__main__.COMMANDS)
    if words[0] in commands:
        commands = [words[0]]
    for word in words:
        option = word.partition("=")[0]
        if not word.startswith("--") or option in _OTHER_FLAGS:
            continue
        if any(re.search(rf"{option}\b", s) for s in _SCRIPTS.values()):
            continue
        problem = _problem(word, commands)
        assert problem is None, f"{word}: {problem}"


_TOP = r"(configs|docs|examples|launch|tests|tf_contrastive)/"


def _paths(text):
    words = [word for line in _lines(text) for word in line.split()]
    words = [re.sub(r"^(\./|--flagfile=)", "", word) for word in words]
    return [w for w in words if re.match(rf"{_TOP}[\w./*{{}},-]+$", w)]


def _braces(pattern):
    """The patterns that a pattern with {a,b} stands for."""
    match = re.search(r"\{([^}]*)\}", pattern)
    if not match:
        return [pattern]
    start, stop = match.span()
    return [
        one
        for part in match[1].split(",")
        for one in _braces(pattern[:start] + part + pattern[stop:])
    ]


@pytest.mark.parametrize("path", _unique(_paths))
def test_a_path_is_there(path):
    for pattern in _braces(path):
        found = list(_ROOT.glob(pattern.rstrip("/")))
        assert found or _ROOT / path == _GENERATED, pattern


def _slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
    return kept.strip().replace(" ", "-")


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_links_lead_somewhere(name):
    text = re.sub(r"`[^`]*`", "", _prose(_DOCUMENTS[name]))
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        there = (_ROOT / name).parent / file if file else _ROOT / name
        assert there.exists() or there.resolve() == _GENERATED, link
        if anchor:
            headings = re.findall(
                r"^#+ (.*)$", there.read_text("utf-8"), re.MULTILINE
            )
            assert anchor in map(_slug, headings), link


def test_every_page_can_be_reached_from_the_guide():
    linked = set()
    for name, text in _GUIDE.items():
        for link in re.findall(r"\]\(([^)#]+\.md)", text):
            linked.add(((_ROOT / name).parent / link).resolve())
    pages = {(_ROOT / name).resolve() for name in _GUIDE}
    assert pages - linked == {_ROOT / "docs" / "guide.md"}


# ---- Numbers ----------------------------------------------------------------


def _rows(text):
    """The cells of every row of a table."""
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    return [[c.strip() for c in line.split(" |")] for line in lines]


def _shown(value):
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def test_the_hyperparameters_of_the_protocols_are_the_program_s():
    paper, cpu = (
        {f.name: _shown(v) for _, f, v in config_fields.fields(evaluate(**o))}
        for o in ({}, {"scale": "cpu"})
    )
    told = set()
    for row in _rows(_DOCUMENTS["docs/protocols.md"]):
        if match := re.fullmatch("`--(\\w+)`", row[0]):
            name = match[1]
            told.add(name)
            assert row[1] == f"`{paper[name]}`", name
            smaller = "" if cpu[name] == paper[name] else f"`{cpu[name]}`"
            assert row[2] == smaller, name
    known = {f.name for _, f, _ in config_fields.fields(Evaluate())}
    common = {
        f.name
        for group, f, _ in config_fields.fields(Evaluate())
        if group in ("evaluation", "terminal")
    }
    assert told >= known - common


def test_the_versions_of_the_protocols_are_the_program_s():
    # Without what the protocols import.
    path = _ROOT / "tf_contrastive" / "evaluation" / "protocols.py"
    (table,) = (
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "PROTOCOLS"
    )
    versions = {
        key.value: value.args[0].value
        for key, value in zip(table.keys, table.values, strict=True)
    }
    text = _DOCUMENTS["docs/protocols.md"]
    told = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| (\d+) ", text, re.MULTILINE)
    assert {name: int(version) for name, version in told} == versions
    assert list(versions) == re.findall(r"^## (\w+)$", text, re.MULTILINE)


def test_curves_are_those_that_a_run_writes():
    source = "".join(
        path.read_text("utf-8")
        for path in (_ROOT / "tf_contrastive").rglob("*.py")
    )
    written = set(re.findall(r'["/](\w+)"', source))
    first = [row[0] for row in _rows(_DOCUMENTS["docs/guide/curves.md"])]
    names = {n for cell in first for n in re.findall(r"`(\w+)`", cell)}
    assert len(names) > 12
    assert names <= written


# ---- What the program says --------------------------------------------------


def _parts(node):
    """A string of the source as texts, and None where values stand."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [p for value in node.values for p in _parts(value)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _parts(node.left) + _parts(node.right)
    return [None]


@functools.cache
def _templates():
    """Every sentence of the package's source, as a list of `_parts`."""
    found = []
    for path in sorted((_ROOT / "tf_contrastive").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                parts = _parts(node)
                if sum(len(p or "") for p in parts) > 15:
                    found.append(parts)
    return found


def _says(parts, message):
    """Whether a message, or its part before an ellipsis, is of a template."""
    tokens = [
        token
        for part in parts
        for token in (
            [None] if part is None else re.findall(r"\s*\S+|\s+", part)
        )
    ]
    patterns = [".+?" if t is None else re.escape(t) for t in tokens]
    if re.fullmatch("".join(patterns), message):
        return True
    start = message.removesuffix("...").rstrip()
    return start != message and any(
        re.fullmatch("".join(patterns[:end]), start)
        for end in range(4, len(patterns))
    )


def _messages(text):
    return [
        content.strip()
        for language, content in _fences(text)
        if language == "text"
    ]


@pytest.mark.parametrize("message", _unique(_messages))
def test_a_message_is_one_that_the_program_says(message):
    assert any(
        _says(parts, message)
        for parts in _templates()
        if (parts[0] or "")[:12] == message[: len((parts[0] or "")[:12])]
    )


# ---- Python -----------------------------------------------------------------


def _snippets(text):
    return [c for language, c in _fences(text) if language == "python"]


def _imported(tree):
    """Name in a snippet -> what it imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


@pytest.mark.parametrize("snippet", _unique(_snippets))
def test_a_snippet_uses_what_there_is(snippet):
    tree = ast.parse(snippet)
    imported = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = imported.get(node.value.id)
            if isinstance(module, types.ModuleType):
                assert hasattr(module, node.attr), ast.unparse(node)


def _whole_snippets(text):
    """Snippets that give every name that they take a value of its own."""
    return [s for s in _snippets(text) if _is_whole(ast.parse(s))]


def _is_whole(tree):
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    taken = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    given = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            given.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.arg):
            given.add(node.arg)
    return taken <= given | set(dir(builtins))


@pytest.mark.slow
@pytest.mark.parametrize("snippet", _unique(_whole_snippets))
def test_a_snippet_that_is_whole_runs(snippet):
    exec(compile(snippet, "snippet", "exec"), {"__name__": "snippet"})


# ---- The commands themselves ------------------------------------------------


class _Reader:
    """Types the commands of the documents, with its own folders in them."""

    def __init__(self, folder, monkeypatch, capsys):
        self._folder, self._monkeypatch = folder, monkeypatch
        self._capsys = capsys
        images = np.random.RandomState(0).randint(0, 256, [40, 40, 40, 3])
        (folder / "images").mkdir()
        for i, image in enumerate(images.astype(np.uint8)):
            file = folder / "images" / f"{i}.png"
            tf.io.write_file(str(file), tf.io.encode_png(image))

    def own(self, word):
        """A word, with places of this test in it."""
        word = re.sub(r"\bDATA$", str(self._folder / "nothing"), word)
        word = word.replace("/path/to/images", str(self._folder / "images"))
        word = re.sub(
            r"(^|=)(runs|reproduction)\b", rf"\1{self._folder}/\2", word
        )
        return re.sub(
            r"^--output=([\w.]+)$", rf"--output={self._folder}/\1", word
        )

    def type(self, document, start, *more):
        """Types the command of a document that begins so; what it prints."""
        (words,) = (
            words
            for words in _commands(_DOCUMENTS[document])
            if " ".join(words).startswith(start)
        )
        words = [*map(self.own, words), *more]
        self._monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
        status = __main__.main()
        said = self._capsys.readouterr()
        assert status == 0, said.err
        return said.out


@pytest.fixture
def reader(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(_ROOT)
    # No graph of the step, and nothing for TensorBoard: half the time.
    monkeypatch.setattr(training, "watch", lambda *_: [])
    tf.config.run_functions_eagerly(True)
    with small.encoder():
        yield _Reader(tmp_path, monkeypatch, capsys)
    tf.config.run_functions_eagerly(False)


@pytest.mark.slow
def test_the_page_of_cifar10_is_followed_to_its_end(reader, tmp_path):
    page, run = "docs/guide/cifar10.md", tmp_path / "runs" / "cifar10"
    start = "pretrain --flagfile=configs/supcon_cifar10_cpu.flags"
    assert "next: " in reader.type(page, start, "--smoke")
    # A smoke run is a run: it is resumed, repeated, scored and exported.
    reader.type(page, "pretrain --flagfile=runs/cifar10/config.flags")
    table = reader.type(
        page, "evaluate --workdir=runs/cifar10 --protocols=knn", "--smoke"
    )
    assert re.search(r"^untrained +linear", table, re.MULTILINE)
    told = reader.type(page, "export")
    assert f"exported: {run}/export/1" in told
    results = json.loads((run / "evaluation.json").read_text())["results"]
    assert {r["protocol"] for r in results} == {"knn", "linear"}


@pytest.mark.slow
def test_own_images_are_trained_on_and_embedded(reader, tmp_path):
    page = "docs/guide/own_images.md"
    reader.type(page, "pretrain --dataset=folder:/path/to/images", "--smoke")
    reader.type(page, "datasets --show=folder:/path/to/images")
    assert (tmp_path / "sheet.png").exists()
    reader.type(
        page,
        "evaluate --workdir=runs/mine",
        "--protocols=uniformity",
        "--nountrained",
        "--smoke",
    )
    # The command of the other page, with this page's run.
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "runs" / "mine")
    reader.type(
        "docs/guide/export.md",
        "embed --workdir=runs/a",
        "--split=train[:8]",
    )
    with np.load(tmp_path / "test.npz") as written:
        assert len(written["embeddings"]) == 8


def test_claims_are_listed_and_planned(reader):
    page = "docs/guide/reproduce.md"
    assert "SI-T1" in reader.type(page, "reproduce --list")
    plan = reader.type(page, "reproduce --claim=SR-T5")
    assert "configs/simclr_imagenet" in plan


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
