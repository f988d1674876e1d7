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
# # The prior in two dimensions
#
# A personal model is held near the mean of its prior by a Bregman divergence. With two parameters one can see what
# that means: which directions are cheap, where the personal model ends up, and how a client moves the mean. All
# figures are computed with the library's own functions; hover over them, zoom, and use the menus and sliders.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import plotly.graph_objects as go

from pfedbred import means, priors, prox

AXIS = np.linspace(-3, 3, 61)
FIRST, SECOND = (jnp.asarray(each.ravel(), jnp.float32) for each in np.meshgrid(AXIS, AXIS))
PLANE = jnp.stack([FIRST, SECOND], axis=1)


def on_plane(function):
    """The values of a function of two parameters on the grid."""
    return np.asarray(jax.vmap(function)(PLANE)).reshape(len(AXIS), len(AXIS))


# %% [markdown]
# ## Divergences
#
# The penalty on a personal model (v1, v2) around the mean (1, -1), for each family. The Gaussian's contours are
# circles: all directions cost the same. A Poisson prior holds the first parameter, whose mean is large, much more
# tightly than the second. The Bernoulli penalty grows slowly far from the mean, and that of the exponential family is
# low below the mean and high above it.

# %%
MEAN = jnp.array([1.0, -1.0])
names = list(priors.PRIORS)
figure = go.Figure()
for k, name in enumerate(names):
    family = priors.get(name)
    penalty = on_plane(lambda v, family=family: family.regulariser(v, MEAN))
    contour = go.Contour(
        x=AXIS,
        y=AXIS,
        z=np.round(np.minimum(penalty, 6), 3),
        contours={"start": 0, "end": 6, "size": 0.5},
        colorscale="Viridis",
        colorbar={"title": "penalty", "thickness": 12},
        visible=k == 0,
        hovertemplate="v1 %{x:.1f}, v2 %{y:.1f}: %{z:.2f}<extra></extra>",
    )
    figure.add_trace(contour)
figure.add_trace(
    go.Scatter(x=[1], y=[-1], mode="markers", marker={"symbol": "x", "size": 12, "color": "red"}, name="mean")
)
buttons = [
    {"label": name, "method": "update", "args": [{"visible": [j == k for j in range(len(names))] + [True]}]}
    for k, name in enumerate(names)
]
figure.update_layout(
    height=460,
    margin={"l": 40, "r": 10, "t": 50, "b": 40},
    xaxis={"title": {"text": "v1"}, "constrain": "domain"},
    yaxis={"title": {"text": "v2"}, "scaleanchor": "x", "constrain": "domain"},
    updatemenus=[
        {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.13, "bgcolor": "white", "font": {"color": "black"}}
    ],
)
figure

# %% [markdown]
# The divergence is in general not symmetric. For the Poisson family, swapping personal model and mean gives a
# different value:

# %%
poisson = priors.get("poisson")
a, b = jnp.array([1.0, 0.0]), jnp.array([-1.0, 0.0])
print(f"from a to b: {poisson.regulariser(a, b):.3f}, from b to a: {poisson.regulariser(b, a):.3f}")

# %% [markdown]
# ## The proximal map
#
# A client's loss is a valley (contours). Its own minimum is the diamond; the mean of its prior is the cross. The
# slider sets the strength lambda of a Gaussian prior; the dot is the personal model, argmin f + lambda D, and the
# line shows it for all strengths, from `local` training at one end to the mean at the other. The path is curved:
# directions that the data does not determine (along the valley) yield to the prior first.

# %%
CENTRE = jnp.array([-1.0, 1.0])
HESSIAN = jnp.array([[3.0, 2.0], [2.0, 1.8]])
PRIOR_MEAN = jnp.array([1.5, 1.5])


def loss(v):
    """A client's loss: a quadratic valley."""
    return 0.5 * (v - CENTRE) @ HESSIAN @ (v - CENTRE)


def personal(lam, family):
    """The proximal point, by many small gradient steps."""
    problem = prox.Problem(loss, PRIOR_MEAN, family, lam)
    return prox.prox(problem, prox.gradient_steps(0.5 / (lam * 8 + 5), 3000), PRIOR_MEAN).personal


strengths = np.geomspace(0.01, 300, 25)
solve = jax.jit(jax.vmap(lambda lam: personal(lam, priors.get("gaussian"))))
path = np.asarray(solve(jnp.asarray(strengths, jnp.float32)))

figure = go.Figure(
    [
        go.Contour(
            x=AXIS,
            y=AXIS,
            z=np.round(np.minimum(on_plane(loss), 15), 3),
            colorscale="Blues_r",
            showscale=False,
            opacity=0.5,
            hoverinfo="skip",
        ),
        go.Scatter(x=path[:, 0], y=path[:, 1], mode="lines", name="all strengths", line={"color": "#d62728"}),
        go.Scatter(x=[-1], y=[1], mode="markers", name="own minimum", marker={"symbol": "diamond", "size": 11}),
        go.Scatter(x=[1.5], y=[1.5], mode="markers", name="mean", marker={"symbol": "x", "size": 11, "color": "red"}),
        go.Scatter(
            x=[path[12, 0]], y=[path[12, 1]], mode="markers", name="personal", marker={"size": 14, "color": "#2ca02c"}
        ),
    ]
)
steps = [
    {
        "label": np.format_float_positional(lam, 2, fractional=False, trim="-"),
        "method": "restyle",
        "args": [{"x": [[float(v[0])]], "y": [[float(v[1])]]}, [4]],
    }
    for lam, v in zip(strengths, path, strict=True)
]
figure.update_layout(
    height=520,
    margin={"l": 40, "r": 10, "t": 30, "b": 40},
    xaxis={"title": {"text": "v1"}, "range": [-3, 3], "constrain": "domain"},
    yaxis={"title": {"text": "v2"}, "range": [-3, 3], "scaleanchor": "x", "constrain": "domain"},
    sliders=[{"active": 12, "steps": steps, "currentvalue": {"prefix": "lambda = "}, "pad": {"t": 45}}],
    legend={"orientation": "h", "y": 1.1},
)
figure

# %% [markdown]
# For a quadratic loss with Hessian H and minimum c, the Gaussian's proximal point has a closed form, (H + lambda)^-1
# (H c + lambda m). The library's solver agrees:

# %%
closed = np.stack(
    [np.linalg.solve(HESSIAN + lam * np.eye(2), HESSIAN @ CENTRE + lam * PRIOR_MEAN) for lam in strengths]
)
print("largest difference:", np.abs(path - closed).max())
assert np.abs(path - closed).max() < 1e-3

# %% [markdown]
# The path from the mean to the client's own minimum depends on the family. All paths start at the mean (cross) and
# end at the minimum (diamond):

# %%
figure = go.Figure()
for name in names:
    family = priors.get(name)
    follow = jax.jit(jax.vmap(lambda lam, family=family: personal(lam, family)))
    line = np.asarray(follow(jnp.asarray(np.geomspace(0.01, 100, 30), jnp.float32)))
    figure.add_trace(go.Scatter(x=line[:, 0], y=line[:, 1], mode="lines+markers", name=name, marker={"size": 4}))
figure.add_trace(
    go.Scatter(
        x=[-1, 1.5],
        y=[1, 1.5],
        mode="markers",
        showlegend=False,
        marker={"symbol": ["diamond", "x"], "size": 11, "color": ["#ff7f0e", "red"]},
    )
)
figure.update_layout(
    height=420,
    margin={"l": 40, "r": 10, "t": 30, "b": 40},
    xaxis={"title": {"text": "v1"}},
    yaxis={"title": {"text": "v2"}},
    legend={"orientation": "h", "y": 1.12},
)
figure

# %% [markdown]
# ## Means
#
# pFedMe's prior is centred at the global model w. The paper's strategies let a client shift the mean by what it
# knows: its gradient at w (`fo`), how it moved in its last round, memory - theta (`mfo`), or both (`mg`). The arrows
# lead from w to the mean of each strategy, with large steps so that they are visible.

# %%
w, theta, memory = jnp.array([1.5, 1.5]), jnp.array([-0.6, 0.9]), jnp.array([1.2, 1.4])
context = means.Context(lambda v, batch: loss(v), theta, memory)
figure = go.Figure(
    go.Contour(
        x=AXIS,
        y=AXIS,
        z=np.round(np.minimum(on_plane(loss), 15), 3),
        colorscale="Blues_r",
        showscale=False,
        opacity=0.5,
        hoverinfo="skip",
    )
)
for name in ("identity", "fo", "mfo", "mg", "mg-meta"):
    mean = np.asarray(means.get(name, 0.12, 0.5).choose(w, context).mean)
    print(f"{name:9} mean {np.round(mean, 2)}, loss there {loss(mean):.2f}")
    figure.add_trace(
        go.Scatter(
            x=[float(w[0]), float(mean[0])],
            y=[float(w[1]), float(mean[1])],
            mode="lines+markers",
            name=name,
            marker={"symbol": "arrow", "angleref": "previous", "size": 14},
        )
    )
LABEL = {"font": {"color": "black"}, "bgcolor": "rgba(255, 255, 255, 0.8)", "arrowcolor": "black"}
for name, point in (("w", w), ("theta", theta), ("memory", memory), ("own minimum", CENTRE)):
    figure.add_annotation(x=float(point[0]), y=float(point[1]), text=name, showarrow=True, ay=-25, **LABEL)
figure.update_layout(
    height=480,
    margin={"l": 40, "r": 10, "t": 30, "b": 40},
    xaxis={"title": {"text": "v1"}, "range": [-2, 2.5]},
    yaxis={"title": {"text": "v2"}, "range": [-0.5, 2.5]},
    legend={"orientation": "h", "y": 1.12},
)
figure

# %% [markdown]
# The formulas are in [The mathematics](../concepts.md), the coordinates in [Priors](../priors.md).
