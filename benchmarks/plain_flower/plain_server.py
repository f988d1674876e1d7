"""The server of plain FedAvg: Flower's own strategy, and the time that each of its rounds took."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds, and writes how long they took."""
    config = context.run_config
    nodes, rounds = int(config["nodes"]), int(config["rounds"])
    own: list[float] = []

    def slowest(replies, weighted_by) -> MetricRecord:
        own.append(max(next(iter(reply.metric_records.values()))["seconds"] for reply in replies))
        return MetricRecord({"seconds": own[-1]})

    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=1.0 if config["evaluate"] else 0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes if config["evaluate"] else 0,
        min_available_nodes=nodes,
        train_metrics_aggr_fn=slowest,
        evaluate_metrics_aggr_fn=slowest,
    )
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.5)
    started = time.perf_counter()
    start = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
    strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
    whole = time.perf_counter() - started
    facts = {"round": whole / rounds, "beyond": (whole - sum(own)) / rounds}
    Path(str(config["out"])).write_text(json.dumps(facts))
