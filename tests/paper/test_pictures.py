"""The paper's figures, drawn from records alone: what they show, and what they say about it."""

import dataclasses

import pfedbred
from pfedbred import paper
from pfedbred.paper import columns, page, pictures
from pfedbred.report import distribution
from pfedbred.report.page import gather


def test_clients_named_by_numbers_are_in_their_order(monkeypatch, tmp_path):
    """In the picture and on the page; names stay as they are."""
    monkeypatch.setitem(columns.ALL, "digits", columns.Column("Digits, MCLR", "digits", "mclr", 2))
    figures = []
    monkeypatch.setattr(distribution, "save", lambda figure, path: figures.append(figure))
    digits = pfedbred.load("digits", clients=4)
    for names, shown in [
        (["0", "10", "2", "33"], ["0", "2", "10", "33"]),
        (["b", "10", "2", "a"], ["b", "10", "2", "a"]),
    ]:
        federations = paper.Federations()
        federations._loaded["digits", "{}"] = dataclasses.replace(digits, names=tuple(names))
        pictures.draw_noniid(paper.Request(tmp_path, federations, ["digits"], say=lambda line: None))
        panel = figures.pop().axes[-1]
        assert [each.get_text() for each in panel.get_xticklabels()] == shown
        (federation,) = gather([tmp_path], [page.section()])["federations"]
        assert federation["names"] == shown
        counts = digits.test.label_counts(digits.classes)
        by_name = dict(zip(names, counts.tolist(), strict=True))
        assert federation["test"] == [by_name[name] for name in shown]
