"""A client of plain FedAvg: multinomial logistic regression in JAX on a .npz of its own."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def loss(weights, x, y):
    """Cross-entropy."""
    logits = x @ weights[0] + weights[1]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0])


@jax.jit
def descend(weights, x, y, rows, step_size):
    """A step of SGD on each minibatch."""

    def step(weights, batch):
        slope = jax.grad(loss)(weights, x[batch], y[batch])
        return jax.tree.map(lambda old, new: old - step_size * new, weights, slope), None

    return jax.lax.scan(step, weights, rows)[0]


def read(message: Message, context: Context):
    """The weights that were sent, and the client's own samples."""
    samples = np.load(str(context.node_config["data"]))
    weights = [jnp.asarray(array) for array in message.content["arrays"].to_numpy_ndarrays()]
    return weights, {name: samples[name] for name in samples.files}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some local steps."""
    begun, config = time.perf_counter(), context.run_config
    weights, data = read(message, context)
    size = len(data["y"])
    shape = (int(config["local-steps"]), int(config["batch-size"]))
    rows = np.random.default_rng().integers(0, size, shape)
    new = jax.device_get(descend(weights, data["x"], data["y"], rows, float(config["step-size"])))
    metrics = MetricRecord({"seconds": time.perf_counter() - begun, "num-examples": size})
    return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's test samples."""
    begun = time.perf_counter()
    weights, data = read(message, context)
    right = np.mean(np.argmax(data["test_x"] @ weights[0] + weights[1], -1) == data["test_y"])
    size = len(data["test_y"])
    metrics = MetricRecord({"accuracy": float(right), "seconds": time.perf_counter() - begun, "num-examples": size})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
