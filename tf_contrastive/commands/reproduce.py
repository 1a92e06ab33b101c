"""`reproduce`: lists, runs, judges and reports the papers' claims."""

import os

from tf_contrastive import terminal
from tf_contrastive.config.reproduce import Reproduce
from tf_contrastive.papers.claims import definitions, listing, verdicts


def run(options: Reproduce) -> int:
    """Prints a list, a plan, or tables of a claim; writes its result.

    A claim's result is `<workdir>/<claim>/result.json`; the runs of all claims
    are in `<workdir>/runs`.

    Args:
      options: validated.

    Returns:
      0; 1 if a claim that was run fails.

    Raises:
      UserError: for an unknown claim, or a command that fails.
    """
    chosen = options.reproduction
    known = definitions.claims(chosen.claims)
    if chosen.list and not chosen.workdir:
        print(listing.listing(known, lambda name: None))
        return 0
    claim = definitions.find(chosen.claim, known) if chosen.claim else None
    recipe = claim and claim.recipe(chosen.scale)
    # Here, so that a list and a mistake need not wait for TensorFlow.
    from tf_contrastive.papers.claims import report, runs

    if chosen.list:
        print(listing.listing(known, lambda n: runs.read(n, chosen.workdir)))
        return 0
    if chosen.report:
        print(report.write(known, chosen.workdir, chosen.report_dir))
        return 0
    place = runs.Place(chosen.workdir, chosen.data_dir, chosen.configs_dir)
    if chosen.dry_run:
        seeds = chosen.seeds or recipe.seeds
        print(report.plan(list(runs.plan(recipe, place, seeds))))
        return 0
    result = runs.run(claim, chosen.scale, place, chosen.seeds, terminal.info)
    print(report.tables_of(claim, recipe, result))
    terminal.info(f"written: {os.path.join(chosen.workdir, claim.name)}")
    return int(result["verdict"] == verdicts.FAILS)
