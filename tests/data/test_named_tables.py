"""Named datasets of one table: heart, school, parkinson."""

import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import pfedbred
from pfedbred import SettingError

REAL = Path(os.environ.get("PFEDBRED_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(name):
    return pytest.mark.skipif(
        not (REAL / name).is_dir(), reason=f"the real {name} is not here: set PFEDBRED_DATA to a folder that holds it"
    )


HEART = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num,hospital\n"
PARKINSON = "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,Jitter(%),PPE\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("PFEDBRED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("heart", "parkinson", "school"):
        (tmp_path / name).mkdir()
    rows = [
        f"{50 + i},1,{1 + i % 4},120,{200 * (i % 2)},0,0,150,0,1.5,2,,{3 + i % 2},{i % 3},{'ab'[i % 2]}"
        for i in range(16)
    ]
    (tmp_path / "heart" / "heart_disease_4_hospitals.csv").write_text(HEART + "\n".join(rows) + "\n")
    rows = [f"{1 + i % 2},60,0,{i}.5,{20 + i},{30.25 + i},0.00{i},0.{i}" for i in range(12)]
    (tmp_path / "parkinson" / "parkinsons_updrs.csv").write_text(PARKINSON + "\n".join(rows) + "\n")
    school = {
        "features": [[float(i), 1.0] for i in range(12)],
        "y": [float(i) for i in range(12)],
        "school": [0, 1, 2] * 4,
    }
    pyarrow.parquet.write_table(pyarrow.table(school), tmp_path / "school" / "school.parquet")
    return tmp_path


def test_heart(folder):
    federation = pfedbred.load("heart", data_dir=str(folder))
    assert (federation.task, federation.labels, federation.names) == ("binary", ("healthy", "sick"), ("a", "b"))
    features = federation.features
    assert "cp=1" in features  # a kind of pain, not an amount of it
    assert "cp" not in features
    assert "chol missing" in features  # a cholesterol of 0 is none
    assert not any("num" in each or "hospital" in each for each in features)
    column = features.index("chol missing")
    np.testing.assert_array_equal(federation.train.client(0)[0][:, column], 1)
    np.testing.assert_array_equal(federation.train.client(1)[0][:, column], 0)
    assert pfedbred.Experiment(dataset="heart").checked().task == "binary"


def test_parkinson_has_no_feature_that_gives_the_answer_away(folder):
    federation = pfedbred.load("parkinson", data_dir=str(folder))
    assert federation.features == ("Jitter(%)", "PPE")
    assert (federation.task, federation.clients) == ("regression", 2)
    assert set(federation.train.y.tolist() + federation.test.y.tolist()) == {30.25 + i for i in range(12)}


def test_school(folder):
    federation = pfedbred.load("school", data_dir=str(folder), clients=2)
    assert (federation.task, federation.clients, federation.shape) == ("regression", 2, (2,))
    with pytest.raises(SettingError, match=r"school was not found: put the school data .* as .*nowhere/school/"):
        pfedbred.load("school", data_dir=str(folder / "nowhere"))


@needs("heart")
def test_the_real_heart():
    federation = pfedbred.load("heart", data_dir=str(REAL))
    assert federation.names == ("cleveland", "hungarian", "switzerland", "va")
    assert [a + b for a, b in zip(federation.train.sizes, federation.test.sizes, strict=True)] == [303, 294, 123, 200]
    everyone = np.concatenate([federation.train.y, federation.test.y])
    assert (len(everyone), int(everyone.sum())) == (920, 509)
    assert np.isfinite(federation.train.x).all()


@needs("school")
@needs("parkinson")
def test_the_real_school_and_parkinson():
    school, parkinson = (pfedbred.load(name, data_dir=str(REAL)) for name in ("school", "parkinson"))
    assert (school.clients, len(school.train.y) + len(school.test.y), school.shape) == (139, 15_362, (28,))
    assert (parkinson.clients, len(parkinson.train.y) + len(parkinson.test.y), parkinson.shape) == (42, 5_875, (16,))
    assert not any("UPDRS" in each for each in parkinson.features)
