"""Cells of a table in processes of their own: what each of them reports, and that the figures are the same."""

import json

import pytest
from support import hub_files

from pfedbred import paper
from pfedbred.experiment.callbacks import Interruption
from pfedbred.paper import jobs


@pytest.fixture
def request_here(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_following", [Interruption()])
    return paper.Request(tmp_path, paper.Federations())


def test_a_job_that_runs_out_of_memory_does_not_end_the_others(request_here):
    def too_large(request):
        request.say("started")
        raise MemoryError

    outcome = jobs._work(too_large, request_here)
    assert outcome.lines[0] == "started"
    assert outcome.problems == outcome.lines[1:] == ["out of memory: use fewer --jobs, and run the same command again"]
    assert outcome.stopped is None


def test_a_job_with_a_fault_fails_as_it_would_alone(request_here):
    def faulty(request):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jobs._work(faulty, request_here)


@pytest.mark.full
@hub_files.needs("heart")
def test_the_fair_comparison_in_jobs_gives_what_one_process_gives(call, tmp_path):
    options = ("paper", "fair", "--columns", "heart", "--rows", "local", "--rounds", "2", "--seeds", "1")
    options += ("--data-dir", str(hub_files.REAL))
    found = {}
    for out, more in (("jobs", ("--jobs", "2")), ("alone", ())):
        code, printed, err = call(*options, *more, "--out", out)
        assert code == 0, err
        assert printed.count(": accuracy of P") == 3
        records = [json.loads((tmp_path / out / "cells/fair/heart" / f"local-{i}.json").read_text()) for i in range(3)]
        found[out] = [(record["settings"], record["P"], record["new"]) for record in records]
    assert found["jobs"] == found["alone"]
