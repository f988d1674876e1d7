# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a table to a federation
#
# Four clinics have tables of patients, with gaps and text columns. First all rows are in one file, as in a study: we
# train a model for each clinic and use it. Then each clinic keeps its own file, and we prepare a federation that
# trains on all of them without moving a row. (It needs `pip install 'pfedbred[data,flower]'`.)

# %%
import csv
import random
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

import pfedbred

# %% [markdown]
# ## The tables
#
# The data is made up: the risk grows with age, but the effect of the dose differs from clinic to clinic. One clinic
# hardly ever measures the pressure, and the smoking habits are texts.

# %%
random.seed(0)
CLINICS = {"north": 1.0, "south": -1.0, "east": 0.8, "west": -0.6}
FIELDS = ["clinic", "age", "dose", "pressure", "smoker", "ill"]
rows = []
for clinic, effect in CLINICS.items():
    for _ in range(150):
        age, dose, pressure = random.gauss(55, 12), random.gauss(0, 1), random.gauss(130, 15)
        smoker = random.choice(["never", "former", "daily"])
        risk = (age - 55) / 12 + effect * dose + {"never": -0.5, "former": 0.0, "daily": 0.7}[smoker]
        measured = random.random() < (0.2 if clinic == "east" else 0.9)
        ill = "yes" if risk + random.gauss(0, 0.5) > 0 else "no"
        rows.append([clinic, f"{age:.0f}", f"{dose:.2f}", f"{pressure:.0f}" if measured else "", smoker, ill])
for name, own in {"all": rows, **{clinic: [row for row in rows if row[0] == clinic] for clinic in CLINICS}}.items():
    with open(f"{name}.csv", "w", newline="") as file:
        csv.writer(file).writerows([FIELDS, *own])
print(Path("east.csv").read_text()[:170])

# %% [markdown]
# ## In one place
#
# There is a client column and a label column; every other column is a feature. Gaps are filled with the clinic's own
# mean, and marked; texts become categories: [Tables with gaps and
# categories](../data.md#tables-with-gaps-and-categories).

# %%
table = pfedbred.load("all.csv", client_column="clinic", label_column="ill", task="binary")
print(table.train.sizes, "training rows;", len(table.features), "inputs:", ", ".join(table.features))

# %%
options = {"rounds": 40, "aggregated": 4, "eval_every": 10, "validation": 0.2, "coverage": 0.9}
for name, settings in {"local": {}, "fedavg": {}, "ditto": {"lam": 0.03}}.items():
    settings = {"alpha": 0.1, **settings}
    run = pfedbred.run(dataset=table, algorithm=name, settings=settings, **options, out=f"runs/{name}")
    record = run.record()
    accuracy, auroc = (record.figure("chosen", metric, "personal")[0] for metric in ("accuracy", "auroc"))
    print(f"{name:7} P at the chosen round: accuracy {100 * accuracy:.1f} %, AUROC {100 * auroc:.1f} %")

# %% [markdown]
# ## Using a clinic's model
#
# The exported model takes raw columns by name, with gaps. Because of `coverage=0.9` above, it also knows [how sure it
# is](../uncertainty.md).

# %%
patient = {"age": 61, "dose": 1.2, "pressure": None, "smoker": "daily"}
for clinic in ("north", "south"):
    model = pfedbred.load_model(pfedbred.export("runs/ditto", client=clinic))
    print(clinic, model.predict([patient]), "with probabilities", np.round(model.probabilities([patient]), 2))

# %% [markdown]
# ## If tables may not move
#
# Now each clinic has only its own file. Clients must agree on the inputs before they train. One clinic describes the
# columns of its table, the others add what is missing, and everybody gets the same `columns.json`, which holds names
# and categories, but no rows.


# %%
def shell(command):
    """Runs a command of the library, and shows what it prints."""
    print("$", command)
    arguments = [sys.executable, "-m", *shlex.split(command)]
    print(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


shell(
    "pfedbred data columns north.csv --client-column clinic --label-column ill --features age,dose,pressure,smoker "
    "--out columns.json"
)
print(Path("columns.json").read_text()[:400])

# %% [markdown]
# On the server's side there is a folder with one file, a Flower app. It sets the method, the number of rounds and how
# many clients are needed.

# %%
shell(
    "pfedbred flower app app --out run --set algorithm=ditto --set rounds=20 --set clients=4 --set min-clients=4 "
    "--set aggregated=4 --set task=binary --set labels=no,yes --set settings='alpha=0.1'"
)
print(Path("app/pyproject.toml").read_text())

# %% [markdown]
# Keys and certificates: every clinic gets a key, and the server a certificate that clients can check.

# %%
shell("pfedbred flower keys keys --node north --node south --node east --node west")

# %% [markdown]
# On each clinic's machine one process connects to the server. Its configuration says where the clinic's table is.
# Nothing leaves the machine except [what the method sends](../deploy.md#what-leaves-a-client):

# %%
for port, clinic in enumerate(CLINICS, start=9101):
    config = f'dataset="{clinic}.csv" label-column="ill" features="age,dose,pressure,smoker" columns="columns.json"'
    print(f"flower-supernode --root-certificates keys/ca.crt --superlink SERVER:9095 --port {port} \\")
    print(f"    --auth-supernode-private-key keys/{clinic} \\")
    print(f"""    --node-config '{config} name="{clinic}" home="{clinic}-home"'\n""")

# %% [markdown]
# [On real machines](../deploy.md) starts the server and the gateway, step by step, and `pfedbred flower demo` runs a
# whole federation on one machine. After the run every clinic has its personal model on its own disk:
#
#     pfedbred predict north-home new_patients.csv
