"""A client of plain FedAvg: multinomial logistic regression in JAX on its .npz file."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def loss(params, x, y):
    """Cross-entropy."""
    logits = x @ params[0] + params[1]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0])


@jax.jit
def descend(params, x, y, rows, step_size):
    """A step of SGD on each minibatch."""

    def step(params, batch):
        slope = jax.grad(loss)(params, x[batch], y[batch])
        return jax.tree.map(lambda old, new: old - step_size * new, params, slope), None

    return jax.lax.scan(step, params, rows)[0]


def read(message: Message, context: Context):
    """The parameters that were sent, and the client's samples."""
    samples = np.load(str(context.node_config["data"]))
    params = [jnp.asarray(array) for array in message.content["arrays"].to_numpy_ndarrays()]
    return params, {name: samples[name] for name in samples.files}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some local steps."""
    started, config = time.perf_counter(), context.run_config
    params, data = read(message, context)
    size = len(data["y"])
    shape = (int(config["local-steps"]), int(config["batch-size"]))
    rows = np.random.default_rng().integers(0, size, shape)
    new = jax.device_get(descend(params, data["x"], data["y"], rows, float(config["step-size"])))
    metrics = MetricRecord({"seconds": time.perf_counter() - started, "num-examples": size})
    return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's test samples."""
    started = time.perf_counter()
    params, data = read(message, context)
    right = np.mean(np.argmax(data["test_x"] @ params[0] + params[1], -1) == data["test_y"])
    size = len(data["test_y"])
    metrics = MetricRecord({"accuracy": float(right), "seconds": time.perf_counter() - started, "num-examples": size})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
