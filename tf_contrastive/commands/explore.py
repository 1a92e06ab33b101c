"""`explore`: a page of neighbours, copies, suspects and a map of a dataset."""

import os
from typing import TYPE_CHECKING, Any, ClassVar

from tf_contrastive.base import errors, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.checks import check_encoder
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.explore import Exploration
from tf_contrastive.config.fields import group

if TYPE_CHECKING:
    from tf_contrastive import datasets


class Explore(Command):
    """Show neighbours, copies, suspect labels and a map of a dataset."""

    IS_OF_ONE: ClassVar = True
    COMMON: ClassVar = (
        *("workdir", "saved_model", "dataset", "data_dir", "split", "query"),
        *("output", "neighbors", "map", "map_images", "max_bad_images"),
    )

    exploration: Exploration = group(Exploration())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        check_encoder(self.exploration, "dataset")


def run(options: Explore) -> int:
    """Writes `explore.html` and `explore.json`; prints what they have."""
    with terminal.without_start_lines():
        from tf_contrastive import datasets, exporting
        from tf_contrastive.base import files
        from tf_contrastive.evaluation.explore import images, page, report

    e = options.exploration
    page_file = os.path.join(e.output, "explore.html")
    json_file = os.path.join(e.output, "explore.json")
    advice = f"set {arg('output')} to a folder that can be written"
    for path in (page_file, json_file):
        files.check_writable(path, advice)
    sources, reading = _open(options)
    asked = queries = None
    if e.query:
        asked = datasets.from_path(e.query, reading)
    encoder = exporting.load(e.workdir or e.saved_model)

    def embed(source: datasets.Source, title: str) -> images.Split:
        return images.embed(encoder, source, e.embedding_batch_size, title)

    splits = [embed(x, f"embeddings of {x.info.split}") for x in sources]
    if asked:
        queries = embed(asked, "embeddings of queries")
    title = f"{sources[0].info.name} by {e.workdir or e.saved_model}"
    findings = report.explore(title, splits, e, queries)
    text = page.write(findings, splits, e.listed, asked)
    files.write(page_file, text, advice)
    files.write(json_file, page.as_text(findings), advice)
    _print(findings)
    print(f"{page_file}: {len(text.encode()) / 1e6:.1f} MB")
    return 0


def _open(options: Explore) -> "tuple[list[datasets.Source], Reading]":
    """Opens the splits, without common images, and returns how."""
    from tf_contrastive import checkpoints, datasets

    e, reading = options.exploration, options.reading
    name, data_dir = e.dataset, e.data_dir
    usual = ["train", "test"]
    if e.workdir:
        run = checkpoints.load_run(e.workdir).config
        name, data_dir, reading = run.input(name, data_dir, reading)
        if name == run.data.dataset:
            usual = [run.data.split, run.data.test_split]
    given = e.split
    sources: list[datasets.Source] = []
    for split in given or usual:
        try:
            source = datasets.source(
                name, split, data_dir=data_dir or None, reading=reading
            )
        except errors.AbsentSplitError:
            if given or not sources:
                raise
            continue
        for other in sources:
            same = datasets.find_overlap(other, source).same
            if same.any():
                raise UserError(
                    f"{name}: {arg('split', split)} has {same.sum():,} images"
                    f" of {other.info.split}: set {arg('split')} to splits"
                    " without common images"
                )
        sources.append(source)
    return sources, reading


def _print(findings: dict[str, Any]) -> None:
    """Prints how many of each kind there are."""
    sections: dict[str, dict[str, Any]] = {
        "images": {**findings["splits"], "classes": len(findings["classes"])},
        "copies": {},
    }
    for kind in ("exact", "near"):
        groups = findings[f"{kind}_duplicates"]
        crossing = sum(group["across_splits"] for group in groups)
        differing = sum(group["classes_differ"] for group in groups)
        sections["copies"][kind] = (
            f"{len(groups):,} groups, {crossing:,} across splits,"
            f" {differing:,} of several classes"
        )
    if "suspects" in findings:
        agreement = findings["agreement"]
        sections["labels"] = {
            "suspects": len(findings["suspects"]),
            "agreement": agreement
            and f"{agreement:.1%} of the labels have the most of"
            f" {findings['voters']} neighbours' votes",
        }
    terminal.print_sections(sections)
