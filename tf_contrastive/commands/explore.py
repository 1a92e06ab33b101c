"""`explore`: a page of neighbours, copies, suspects and a map of a dataset."""

import dataclasses
import os
from typing import TYPE_CHECKING, Any, ClassVar

from tf_contrastive.base import errors, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.checks import split_list
from tf_contrastive.config.data import Reading, inherited
from tf_contrastive.config.explore import Exploration
from tf_contrastive.config.fields import Command, Terminal, group

if TYPE_CHECKING:
    from tf_contrastive import datasets
    from tf_contrastive.evaluation.explore import report

_PAGE, _JSON = "explore.html", "explore.json"
_NAMED = 3  # Entries of a list that are printed.


@dataclasses.dataclass(frozen=True)
class Explore(Command):
    """Show neighbours, copies, suspect labels and a map of a dataset."""

    IS_OF_ONE: ClassVar = True
    COMMON: ClassVar = (
        "workdir",
        "saved_model",
        "embeddings",
        "dataset",
        "data_dir",
        "split",
        "query",
        "output",
        "neighbors",
        "map",
        "map_images",
        "max_bad_images",
    )

    exploration: Exploration = group(Exploration())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        e = self.exploration
        if [e.workdir, e.saved_model, e.embeddings].count("") != 2:
            raise UserError(
                f"set one of {arg('workdir', 'RUN')},"
                f" {arg('saved_model', 'EXPORT/VERSION')} and"
                f" {arg('embeddings', 'FILE')}"
            )
        if e.saved_model and not e.dataset:
            raise UserError(
                f"{arg('saved_model', e.saved_model)} needs"
                f" {arg('dataset', 'NAME')}: an export does not name its"
                " dataset"
            )
        if not e.embeddings:
            return
        if e.query:
            raise UserError(
                f"{arg('query', e.query)} needs the encoder: set"
                f" {arg('workdir', 'RUN')} instead of {arg('embeddings')}"
            )
        files, splits = split_list(e.embeddings), split_list(e.split)
        if e.dataset and len(files) != len(splits):
            raise UserError(
                f"{arg('embeddings')} has {len(files)} files and"
                f" {arg('split', e.split)} {len(splits)} splits: set"
                f" {arg('split')} to that of each file"
            )


def run(options: Explore) -> int:
    """Writes `explore.html` and `explore.json`; prints what they have."""
    with terminal.without_start_lines():
        from tf_contrastive.base import files
        from tf_contrastive.evaluation.explore import page
        from tf_contrastive.evaluation.explore import report as reports

    chosen = options.exploration
    for path in split_list(chosen.embeddings):
        if path.endswith(".parquet"):
            errors.check_package(arg("embeddings", path), "pyarrow")
    folder = os.path.expanduser(chosen.output)
    page_file, json_file = (
        os.path.join(folder, name) for name in (_PAGE, _JSON)
    )
    advice = f"set {arg('output')} to a folder that can be written"
    for path in (page_file, json_file):
        files.check_writable(path, advice)
    if chosen.embeddings:
        report = reports.explore(chosen.embeddings, _of_files(options), chosen)
    else:
        report = _of_encoder(options)
    text = page.write(report)
    files.write(page_file, text, advice)
    files.write(json_file, page.as_text(report.as_json()), advice)
    _print(report)
    size = len(text.encode()) / 1e6
    print(f"{page_file}: {len(report.shown):,} images, {size:.1f} MB")
    return 0


def _of_files(options: Explore) -> list[Any]:
    """Reads the splits of files of embeddings."""
    from tf_contrastive import datasets
    from tf_contrastive.evaluation.explore import images

    chosen = options.exploration
    paths = split_list(chosen.embeddings)
    splits = split_list(chosen.split)
    names = splits or [os.path.basename(path) for path in paths]
    if len({*names}) < len(paths):
        names = paths
    found = []
    for place, path in enumerate(paths):
        source = chosen.dataset and datasets.source(
            chosen.dataset,
            splits[place],
            data_dir=chosen.data_dir or None,
            reading=options.reading,
        )
        found.append(
            images.of_file(
                os.path.expanduser(path),
                options.reading,
                names[place],
                source or None,
            )
        )
    return found


def _of_encoder(options: Explore) -> "report.Report":
    """Embeds the splits of a dataset, and explores them."""
    from tf_contrastive import datasets, exporting
    from tf_contrastive.evaluation.explore import images, report

    chosen = options.exploration
    sources, reading = _open(options)
    report.check_count(sum(x.info.num_examples for x in sources))
    queries = None
    if chosen.query:
        queries = datasets.from_paths(
            datasets.find_images(chosen.query), reading
        )
    encoder = exporting.load(chosen.workdir or chosen.saved_model)

    def embed(source: "datasets.Source", title: str) -> Any:
        size = chosen.embedding_batch_size
        return images.embed(encoder, source, size, title)

    splits = [
        images.of_source(x, embed(x, f"embedding {x.info.split}"))
        for x in sources
    ]
    found = queries and (queries, embed(queries, "embedding queries"))
    title = f"{sources[0].info.name} by {chosen.workdir or chosen.saved_model}"
    return report.explore(title, splits, chosen, found or None)


def _open(options: Explore) -> "tuple[list[datasets.Source], Reading]":
    """Opens the splits, without common images, and returns how."""
    from tf_contrastive import checkpoints, datasets

    chosen, reading = options.exploration, options.reading
    name, data_dir = chosen.dataset, chosen.data_dir
    usual = ["train", "test"]
    if chosen.workdir:
        run = checkpoints.load_run(chosen.workdir).config
        if name in ("", run.data.dataset):
            name = run.data.dataset
            usual = [run.data.split, run.data.test_split]
            reading = inherited(reading, run.reading)
        data_dir = data_dir or run.data.data_dir
    given = split_list(chosen.split)
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


def _print(report: "report.Report") -> None:
    """Prints numbers, and the first entries of each list."""
    copies = sum(len(group.rows) - 1 for group in report.exact)
    sections: dict[str, dict[str, Any]] = {
        "images": {
            **{split.name: len(split.names) for split in report.splits},
            "classes": len({*report.labels.tolist()} - {-1}),
        },
        "copies": {
            f"near_{report.likeness}": f"at least {report.limit:g}",
            "found_by": "pixels"
            if report.by_pixels
            else "embeddings alone: there are no images",
            "exact": f"{copies:,}, in {len(report.exact):,} groups",
            "near": f"{len(report.near):,} groups",
        },
    }
    for kind, groups in (("exact", report.exact), ("near", report.near)):
        crossing = sum(map(report.crosses, groups))
        differing = sum(map(report.disagrees, groups))
        sections["copies"] |= {
            f"{kind}_across_splits": f"{crossing:,} groups",
            f"{kind}_of_several_classes": f"{differing:,} groups",
            f"{kind}_first": [
                " = ".join(report.names[row] for row in group.rows[:_NAMED])
                for group in groups[:_NAMED]
            ],
        }
    if report.votes is not None and report.mixing is not None:
        mixed = [
            f"{report.class_name(of)} has {share:.0%} of its neighbours in"
            f" {report.class_name(to)}"
            for of, to, share, _ in zip(*report.mixing, strict=True)
            if of != to
        ]
        sections["labels"] = {
            "agreement": report.agreement
            and f"{report.agreement:.1%} of the labels have the most of"
            f" {report.voters} neighbours' votes",
            "suspects": len(report.suspects),
            "suspects_first": [
                f"{report.names[row]}: {report.class_name(report.labels[row])}"
                f" among {report.class_name(report.votes.winner[row])}"
                for row in report.suspects[:_NAMED]
            ],
            "classes_that_mix": mixed[:_NAMED],
        }
    sections["outliers"] = {
        "first": [
            f"{report.names[row]}: cosine {score:.3f}"
            for row, score in zip(
                report.outliers[:_NAMED], report.scores, strict=False
            )
        ]
    }
    terminal.print_sections(sections)
