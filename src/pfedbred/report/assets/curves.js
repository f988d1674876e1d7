// Curves by round of the global model (G) and the personal models (P), as runs and contributed sections show them.

const COLOURS = ["#2f7fd1", "#e06c1f", "#1a9c74", "#c76aa0", "#45b3e0", "#d99a00", "#8f8f8f", "#a3844a", "#7a67d6", "#c94f4f"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const NAMES = { G: "Global model (G)", P: "Personal models (P)" };
const ACCURACY = { name: "accuracy", title: "accuracy", percent: true, higher_is_better: true };

const colour = (index) => COLOURS[index] ?? hue(index);
const hue = (index) => { // after the ten of the list: around the circle by the golden angle, so that neighbours differ
  const part = (shift) => Math.round(255 * (0.5 + 0.3 * Math.cos(2.39996 * index + shift))).toString(16).padStart(2, "0");
  return "#" + part(0) + part(2.1) + part(4.2);
};
const dash = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];
const faint = (hex) => hex + "2e";

// A value of a metric, the unit it is shown in, and the same for Plotly's labels.
const shownValue = (value, metric) => (value === null || value === undefined ? "–" : metric.percent ? value.toFixed(2) : value.toPrecision(4));
const plusMinus = (half, metric) => (half === null || half === undefined ? "" : ` ± ${metric.percent ? half.toFixed(2) : half.toPrecision(2)}`);
const unit = (metric) => (metric.percent ? " (%)" : "");
const hovered = (axis, metric) => (metric.percent ? `%{${axis}:.2f} %` : `%{${axis}:.4g}`);

// Checkboxes for the curves to show.
const filter = (parent, items, shown, show, title) => {
  const boxes = items.map((item) => make("label", {},
    make("input", { type: "checkbox", checked: shown.has(item.name), "data-curve": item.name, on: { change: (event) => {
      event.target.checked ? shown.add(item.name) : shown.delete(item.name);
      show();
    } } }),
    make("span", { class: "swatch " + item.dash, style: `--shade:${item.shade}`, "aria-hidden": "true" }),
    make("span", { text: item.name })));
  parent.append(make("fieldset", {}, make("legend", { text: title }), ...boxes));
};

// G and P side by side, or one above the other where there is no room.
const twoPanels = (height, tall) => {
  const layout = { height: narrow() ? tall : height, annotations: [],
    grid: { rows: narrow() ? 2 : 1, columns: narrow() ? 1 : 2, pattern: "independent", ygap: 0.28 } };
  Object.values(NAMES).forEach((title, panel) => {
    const suffix = panel ? "2" : "";
    layout.annotations.push({ text: `<b>${title}</b>`, showarrow: false, xref: `x${suffix} domain`, yref: `y${suffix} domain`,
      x: 0, y: 1.02, xanchor: "left", yanchor: "bottom" });
  });
  return layout;
};
const axesOf = (panel) => ({ xaxis: panel ? "x2" : "x", yaxis: panel ? "y2" : "y" });

// A range that shows the differences at the end rather than the climb at the start.
const settled = (curves, metric) => {
  const values = curves.flatMap((curve) => curve.slice(Math.floor(curve.length / 20))).filter((value) => value !== null);
  if (!values.length) return {};
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (!metric.percent) return high > low ? { range: [low - 0.06 * (high - low), high + 0.06 * (high - low)] } : {};
  const margin = Math.max(1, 0.06 * (high - low));
  return { range: [Math.max(0, low - margin), Math.min(101, high + margin)] };
};

// A line for the mean over seeds, and a band from the lowest to the highest seed.
const band = (item, series, axes, hovertemplate) => {
  const data = [];
  if (item.seeds > 1) {
    data.push({ x: [...item.rounds, ...[...item.rounds].reverse()], y: [...series.high, ...[...series.low].reverse()],
      fill: "toself", fillcolor: faint(item.shade), line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false, ...axes });
  }
  const points = series.mean.filter((value) => value !== null).length;
  data.push({ x: item.rounds, y: series.mean, name: plain(item.name), mode: points > 1 ? "lines" : "markers",
    line: { color: item.shade, dash: item.dash, width: 2 }, marker: { color: item.shade, size: 9 }, hovertemplate, ...axes });
  return data;
};

// The round chosen on validation samples, of each seed.
const circles = (item, series, axes) => (series.chosen ? [{ x: series.chosen.rounds, y: series.chosen.values, mode: "markers", hoverinfo: "skip", showlegend: false,
  marker: { symbol: "circle-open", color: item.shade, size: 9, line: { width: 2 } }, ...axes }] : []);

// `items` have a name, rounds, seeds, a look (shade, dash), and a series for G, for P or for both.
const byRound = (items, metric) => {
  const data = [], layout = { ...twoPanels(430, 720), hovermode: "x unified" };
  Object.keys(NAMES).forEach((model, panel) => {
    const having = items.filter((item) => item[model]);
    data.push({ x: [], y: [], hoverinfo: "skip", ...axesOf(panel) }); // else a panel without a curve has no axes
    for (const item of having) data.push(...band(item, item[model], axesOf(panel), hovered("y", metric)), ...circles(item, item[model], axesOf(panel)));
    const suffix = panel ? "2" : "";
    layout["xaxis" + suffix] = { title: { text: "round" } };
    layout["yaxis" + suffix] = { title: { text: plain(`test ${metric.title}${unit(metric)}`) }, ...settled(having.flatMap((item) => [item[model].low, item[model].high]), metric) };
  });
  return { data, layout };
};

const aboutSeeds = (items) => (items.some((item) => item.seeds > 1)
  ? "Lines are means over seeds; bands reach from the lowest to the highest seed." : "One seed.");
const atTheEnd = (items, metric, caption) => numbers(["method", "round", "G" + unit(metric), "P" + unit(metric)], items.map((item) =>
  [item.name, String(item.rounds.at(-1)), shownValue(item.G?.mean.at(-1), metric), shownValue(item.P?.mean.at(-1), metric)]), caption);
