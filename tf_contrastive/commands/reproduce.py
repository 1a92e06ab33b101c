"""`reproduce`: lists, runs, judges and reports the papers' claims."""

import os

from tf_contrastive import terminal
from tf_contrastive.config.reproduce import Reproduce
from tf_contrastive.lab.claims import definitions, verdicts


def run(options: Reproduce) -> int:
    """Prints a list, a plan, or the tables of a claim that it runs.

    A claim's result is written to `<workdir>/<claim>/result.json`, and the runs
    of all claims to `<workdir>/runs`. Returns 1 if a claim that was run is
    contradicted or invalid.
    """
    chosen = options.reproduction
    known = definitions.claims(chosen.claims)
    landed = definitions.landed(
        os.path.join(chosen.report_dir, definitions.RESULTS)
    )
    if chosen.list and not chosen.workdir:
        print(definitions.listing(known, lambda c: landed.get(c.name)))
        return 0
    claim = definitions.find(chosen.claim, known) if chosen.claim else None
    recipe = claim.recipe(chosen.scale) if claim else None
    # Imported here, so that the list and errors need not wait for TensorFlow.
    from tf_contrastive.lab.claims import results_document, runs

    if claim is None or recipe is None:
        if chosen.list:
            print(
                definitions.listing(
                    known,
                    lambda c: (
                        runs.read(c, chosen.workdir) or landed.get(c.name)
                    ),
                )
            )
        else:
            print(
                results_document.write(known, chosen.workdir, chosen.report_dir)
            )
        return 0
    folders = runs.Folders(chosen.workdir, chosen.data_dir, chosen.configs_dir)
    if chosen.dry_run:
        seeds = chosen.seeds or recipe.seeds
        print(results_document.plan(runs.plan(recipe, folders, seeds)))
        return 0
    result = runs.run(claim, chosen.scale, folders, chosen.seeds)
    print(results_document.tables(recipe, result))
    terminal.info(f"written: {os.path.join(chosen.workdir, claim.name)}")
    return int(result["verdict"] in (verdicts.CONTRADICTED, verdicts.INVALID))
