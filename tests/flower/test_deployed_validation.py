"""Validation samples on a real federation: clients keep them, the server chooses the round, each keeps its model."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import (
    Killed,
    Loopback,
    assert_close,
    assert_same_run,
    coordinator,
    facts_in,
    lines,
    nodes_of,
    personal,
    run,
    simulate,
)

from pfedbred.runs import trained_model

OPTIONS = {"algorithm": "pfedme", "clients": 3, "aggregated": 2, "validation": 0.3}
OPTIONS |= {"settings": "R=2 K=2 alpha_m=0.1"}
SIMULATED = {"validation": 0.3, "settings": {"R": 2, "K": 2, "alpha_m": 0.1}}


def chosen_models_are_the_simulations(folder, simulated):
    """G of the server, and P of every client at home, as they were at the chosen rounds."""
    for model in ("global", "personal"):
        for line, point in zip(lines(folder / "run"), simulated.points, strict=True):
            for name, values in point.scores.of(model).validation.values.items():
                np.testing.assert_allclose(line[model]["validation"][name], values, rtol=1e-4, err_msg=name)
    found = trained_model.load_model(folder / "run" / "global.safetensors")
    assert (found.about["round"], found.about["chosen_on"]) == (simulated.chosen.rounds["global"][0], "validation")
    assert_close(found.params, simulated.global_model())
    for i in range(3):
        own = personal(folder, i)
        assert own.about["round"] == simulated.chosen.rounds["personal"][0]
        assert_close(own.params, simulated.personal_model(i))


@pytest.mark.parametrize(("seed", "rounds"), [(0, (1, 4)), pytest.param(5, (3, 2), marks=pytest.mark.full)])
@pytest.mark.few_cases
@pytest.mark.full
def test_the_chosen_models_are_the_simulations(prepared, tmp_path, seed, rounds):
    """The personal models chosen are those of the last round, or of one before."""
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    summary = run(grid, tmp_path / "run", **OPTIONS, seed=seed, rounds=4)
    simulated = simulate(made, "pfedme", rounds=4, seed=seed, **SIMULATED)
    chosen_models_are_the_simulations(tmp_path, simulated)
    held = made.with_validation(0.3, seed=0)
    assert summary["data"]["validation_samples"] == len(held.validation.y)
    assert summary["data"]["train_samples"] == len(held.train.y)
    assert summary["personal"]["chosen_round"] == simulated.chosen.rounds["personal"].tolist()
    introduced = [facts_in(reply) for _, message, reply in grid.wire if message.metadata.message_type == "query.meet"]
    assert [each["validation"] for each in introduced] == held.validation.sizes.tolist()
    assert (*simulated.chosen.rounds["global"], *simulated.chosen.rounds["personal"]) == rounds
    kinds = [message.metadata.message_type for _, message, _ in grid.wire]
    assert kinds.count("query.keep") == (3 if rounds[1] == 4 else 0)  # else the last round's requests have told it


@pytest.mark.full
@pytest.mark.slow
def test_a_resumed_server_chooses_as_an_uninterrupted_one(prepared, tmp_path):
    _, path = prepared
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    options = {**OPTIONS, "rounds": 4}
    run(Loopback(nodes_of(path, 3, tmp_path / "whole")), tmp_path / "whole" / "run", **options)

    def die(node, message, reply):
        if message.metadata.group_id == "3":
            raise Killed
        return reply

    nodes = nodes_of(path, 3, tmp_path / "killed")
    with pytest.raises(Killed):
        coordinator(Loopback(nodes, die), tmp_path / "killed" / "run", **options).run()
    run(Loopback(nodes), tmp_path / "killed" / "run", **options)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    one, other = (json.loads((tmp_path / each / "run" / "summary.json").read_text()) for each in ("whole", "killed"))
    assert one["global"] == other["global"]
    assert one["personal"] == other["personal"]
