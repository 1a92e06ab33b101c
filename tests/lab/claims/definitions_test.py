"""Claims and the papers' numbers, as the package has them."""

import pytest
from processes import ROOT

from lab.claims import definitions, measures, runs, verdicts
from lab.commands import reproduce
from lab.commands.reproduce import Reproduce
from tf_contrastive import flags
from tf_contrastive.base import errors
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain


def test_the_list_shows_landed_results_and_reasons(capsys, tmp_path):
    docs = ROOT / "docs"
    for folder, verdict in ((docs, "partly shown (cpu)"), (tmp_path, " - ")):
        options = {"list": True, "report_dir": str(folder)}
        assert reproduce.run(fields.replace(Reproduce(), **options)) == 0
        lines = capsys.readouterr().out.splitlines()
        (line,) = [line for line in lines if line.startswith("SI-T4 ")]
        assert verdict in line
    known = definitions.claims()
    for name, item in definitions.items().items():
        assert definitions.claim_of(name, known) or item.note, name


def test_the_papers_numbers():
    items = definitions.items()
    assert items["SI-T1"].cell(["SINCERE", 50, 512], "CIFAR-2") == 0.972
    assert items["SI-T4"].cell(["SupCon"], "CIFAR-100 final") == 2.37
    assert items["SC-T1"].cell([], "3") == 76.6
    assert items["IP-T4"].cell(["SimCLR τ=.2", "1st"], "60") == 24.9
    assert items["SR-T7"].cell([256], "100 sqrt") == 62.8
    assert items["SR-T8"].cell(["R50 4\u00d7"], "1% top-5") == 86.6
    assert items["SR-T8"].cell(["R50 2\u00d7"], "linear") == 74.4
    assert items["IP-D1"].cell(["SWD normal", 1024], "100") == 83.3
    with pytest.raises(KeyError):
        items["SC-T1"].cell([], "4")


@pytest.mark.slow
def test_every_claim_has_valid_commands_and_values_that_are_written():
    kinds = {"pretrain": Pretrain, "evaluate": Evaluate}
    for claim in definitions.claims().values():
        for scale, recipe in claim.recipes.items():
            assert any(not x.also for x in recipe.relations), claim.name
            if scale == "cpu":
                assert recipe.seeds >= verdicts.MIN_SEEDS
            units = list(runs.plan(recipe, runs.Folders("w", "d"), 1))
            assert len(units) == len(list(recipe.units()))
            for name, *words in [c for u in units for c in u.commands]:
                flags.parse(kinds[name], words).validate()
            tried = runs.candidates(recipe, runs.Folders("w", "d"))
            for unit in [*(x for x, _ in tried), *units]:
                assert measures.check(recipe, unit)
            for table in recipe.printed:
                for arm in table.rows:
                    assert any(
                        recipe.paper_value(case, arm, table.value)
                        for case in recipe.cases
                    )


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ({"not_judged": "small"}, "unknown field of a relation 'not_judged'"),
        ({"part": "p", "also": "small"}, "not both"),
        ({"at_most": 1}, "one of at_least, at_most, within"),
    ],
)
def test_a_relation_with_other_fields_is_refused(relation, message):
    relation = {"left": "x of a", "at_least": 0} | relation
    values = {"x": ["training", "loss"]}
    recipe = {"arms": {"a": {}}, "values": values, "relations": [relation]}
    claims = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    with pytest.raises(errors.UserError, match=message):
        definitions.claims_from(claims, "claims.json")
