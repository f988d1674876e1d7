// Runs: outcome, curves, clients and diagnostics. One choice of metric governs the first three.

const runs = content.runs.map((run, index) => ({ ...run, shade: colour(index), dash: dash(index) }));
let metric = content.metrics.find((each) => each.name === ACCURACY.name) ?? content.metrics[0];
const ofMetric = (run) => own(run.metrics, metric.name); // a run need not have been evaluated with it
const metricLists = [], onMetric = [];

const metricChoice = (parent, id) => {
  if (content.metrics.length < 2) return;
  metricLists.push(dropdown(parent, id, "Metric:", content.metrics.map((each) => each.title), content.metrics.indexOf(metric), (index) => {
    metric = content.metrics[index];
    for (const list of metricLists) list.value = index;
    for (const show of onMetric) show();
  }));
};

const FIGURES = { chosen: "chosen round", last: "last round", best: "best on test" };
const validated = runs.some((run) => Object.values(run.metrics).some((each) => each.P.chosen));
const measured = (run, model, figure) => ofMetric(run)?.[model].figures[figure]; // a run without validation samples has no chosen round

// Runs are compared only with those on the same test samples, and in a figure that these have too.
const testsOf = (run) => JSON.stringify(run.tests);
const sameTests = [...new Set(runs.map(testsOf))].map((tests) => runs.filter((run) => testsOf(run) === tests));
const leader = (among, model, figure) => among.filter((run) => (measured(run, model, figure)?.mean ?? null) !== null).reduce((a, b) => {
  if (!a) return b;
  const [first, second] = [a, b].map((run) => measured(run, model, figure).mean);
  return (metric.higher_is_better ? second > first : second < first) ? b : a;
}, null);
const isLeader = (run, model, figure) => {
  const rivals = sameTests.find((each) => each.includes(run)).filter((each) => measured(each, model, figure));
  const first = leader(rivals, model, figure);
  return rivals.length > 1 && first !== null && measured(run, model, figure)?.mean === measured(first, model, figure).mean;
};

// The leader on each test data in the figure to quote: at the chosen round, if all have it, else at the best one.
const leaders = (model) => sameTests.map((each) => {
  const figure = each.every((run) => measured(run, model, "chosen")) ? "chosen" : "best";
  const run = leader(each, model, figure);
  return run && { run, value: measured(run, model, figure).mean, rivals: each.length };
}).filter((each) => each);

addSection(() => {
  if (!runs.length) return;
  const element = section("table", "Outcome", (validated ? "Test values, mean ± half-width of its 95 % interval: at the round that is best on the "
    + "validation samples, at the last round, and at the round that is best on the test samples themselves, as the paper reports it. "
    : "The best test value over the rounds, mean ± half-width of its 95 % interval over seeds. ") + "G is the global model on all test samples, P each client's personal model on its own test samples. Worst tenth: mean P over the "
    + "tenth of the clients for which it is worst, at the end.");
  metricChoice(element, "table-metric");
  const holder = element.appendChild(make("div"));
  const shown = validated ? ["chosen", "last", "best"] : ["best"];
  const cell = (run, model, figure) => {
    const found = measured(run, model, figure);
    if (ofMetric(run)?.[model].diverged) return "diverged";
    return !found || found.mean === null ? "–" : shownValue(found.mean, metric) + plusMinus(found.half, metric);
  };
  const figures = (run, model) => shown.map((figure) => cell(run, model, figure));
  const titles = (model) => shown.map((figure) => (validated ? FIGURES[figure] : model + unit(metric)));
  // Data and model are columns only where runs differ in them.
  const differing = ["dataset", "model"].filter((key) => runs.some((run) => run[key] !== runs[0][key]));
  const about = (run) => differing.map((key) => run[key]);
  const shared = ["dataset", "model"].filter((key) => !differing.includes(key)).map((key) => runs[0][key]).join(", ");
  const rejected = runs.some((run) => run.rejected);
  const show = () => {
    const worst = runs.some((run) => (ofMetric(run)?.P.worst_tenth ?? null) !== null);
    const rows = runs.map((run) => [run.name, ...about(run), ...figures(run, "G"), ...figures(run, "P"),
      ...(worst ? [shownValue(ofMetric(run)?.P.worst_tenth, metric)] : []), String(run.seeds), String(run.rounds.at(-1)),
      ...(rejected ? [String(run.rejected)] : []), run.milliseconds.toPrecision(3)]);
    // A run's ensemble is one model of all its seeds, at the figure to quote; it has no interval, and no G.
    const none = shown.map(() => "–"), primary = (run) => ofMetric(run)?.P.worst_tenth !== undefined;
    const together = runs.filter((run) => run.ensemble && ofMetric(run)).map((run) => [`${run.name}, ensemble of its seeds${validated ? "" : " (last round)"}`, ...about(run), ...none,
      ...shown.map((_, place) => (place ? "–" : shownValue(run.ensemble.values[metric.name], metric))),
      ...(worst ? [primary(run) ? shownValue(run.ensemble.worst_tenth, metric) : "–"] : []), String(run.seeds), String(run.rounds.at(-1)), ...(rejected ? ["–"] : []), "–"]);
    const columns = ["method", ...differing.map((key) => (key === "dataset" ? "data" : "model")), ...titles("G"), ...titles("P"), ...(worst ? ["worst tenth" + unit(metric)] : []),
      "seeds", "rounds", ...(rejected ? ["rejected updates"] : []), "ms per round"];
    const before = 1 + differing.length, firstP = before + shown.length;
    const isBest = (r, c) => r < runs.length && c >= firstP && c < firstP + shown.length && isLeader(runs[r], "P", shown[c - firstP]);
    const groups = validated ? [["", before], ["G" + unit(metric), shown.length], ["P" + unit(metric), shown.length], ["", columns.length - before - 2 * shown.length]] : [];
    const caption = `Outcome of each run${shared ? ` (${shared})` : ""}: ${metric.title}.` + (sameTests.some((each) => each.length > 1) ? " Marked: the best P of the runs on the same test samples." : "");
    holder.replaceChildren(table(columns, [...rows, ...together], caption, isBest, groups));
  };
  onMetric.push(show);
  show();
});

addSection(() => {
  if (!runs.length) return;
  const element = section("curves", "Curves by round", aboutSeeds(runs) + (validated ? " Circles: the round of each seed chosen on validation samples." : ""));
  metricChoice(element, "curves-metric");
  const shown = new Set(runs.map((run) => run.name));
  const items = () => runs.filter(ofMetric).map((run) => ({ ...run, G: ofMetric(run).G, P: ofMetric(run).P }));
  const words = () => {
    const best = Object.keys(NAMES).flatMap((model) => leaders(model).filter((each) => each.rivals > 1 || runs.length === 1)
      .map(({ run, value }) => `best ${model}${sameTests.length > 1 ? ` on ${run.dataset}` : ""}: ${run.name}, ${shownValue(value, metric)}${metric.percent ? " %" : ""}`));
    const count = items().length, diverged = items().every((item) => item.G.diverged && item.P.diverged);
    return [`Test ${metric.title} by round of ${count} run${count > 1 ? "s" : ""}`, ...(diverged ? ["all diverged"] : best)].join("; ") + ".";
  };
  if (runs.length > 1) filter(element, runs, shown, () => show(), "Runs shown");
  const show = chart(element, "curves-chart", words, () => byRound(items().filter((item) => shown.has(item.name)), metric),
    () => atTheEnd(items(), metric, `${metric.title} at the end, mean over seeds`));
  onMetric.push(show);
});

addSection(() => {
  const having = runs.filter((run) => run.clients.length);
  if (!having.length) return;
  const element = section("clients", "Client by client", "Which clients gain from personalisation and which lose: each client's own test "
    + "samples under the global model and under its personal model, at the end, mean over seeds, sorted by G.");
  let current = leaders("P").map((each) => each.run).find((run) => having.includes(run)) ?? having[0];
  const clients = () => {
    const values = ofMetric(current);
    if (!values) return [];
    return current.clients.map((name, i) => ({ name, g: values.G.clients[i], p: values.P.clients[i] })).filter((each) => each.g !== null && each.p !== null);
  };
  const summary = () => {
    const all = clients();
    if (!all.length) return `${current.name} was not evaluated with ${metric.title}.`;
    const [above, below] = [all.filter((client) => client.p > client.g).length, all.filter((client) => client.p < client.g).length];
    const [gain, lose] = metric.higher_is_better ? [above, below] : [below, above];
    return `${current.name}, ${metric.title}: of ${all.length} clients ${gain} gain, ${lose} lose, ${all.length - gain - lose} are unchanged.`;
  };
  if (having.length > 1) dropdown(element, "clients-run", "Run:", having.map((run) => run.name), having.indexOf(current), (index) => { current = having[index]; update(); });
  metricChoice(element, "clients-metric");
  const words = element.appendChild(make("p", { id: "clients-summary", "aria-live": "polite", text: summary() }));
  const draw = () => {
    const sorted = clients().sort((a, b) => a.g - b.g || a.p - b.p);
    const joins = { x: sorted.flatMap((_, index) => [index, index, null]), y: sorted.flatMap((client) => [client.g, client.p, null]) };
    const size = Math.max(3, Math.min(10, 600 / sorted.length));
    const dots = (key, shade, title) => ({ x: sorted.map((_, index) => index), y: sorted.map((client) => client[key]), mode: "markers", name: title,
      marker: { color: shade, size }, text: sorted.map((client) => plain(client.name)), hovertemplate: `client %{text}: ${hovered("y", metric)}<extra>${title}</extra>` });
    return {
      data: [{ ...joins, mode: "lines", line: { color: style("--line"), width: sorted.length > 300 ? 0.6 : 1.4 }, hoverinfo: "skip", showlegend: false },
        dots("g", COLOURS[0], "G"), dots("p", COLOURS[1], "P")],
      layout: { height: 400, showlegend: true, legend: { orientation: "h", y: 1.12 }, hovermode: "closest",
        xaxis: clientAxis(sorted.map((client) => client.name), "client, sorted by G", "rank of the client by G"), yaxis: { title: { text: plain(`test ${metric.title}${unit(metric)}`) } } },
    };
  };
  const rows = () => clients().map((client) => [client.name, shownValue(client.g, metric), shownValue(client.p, metric), shownValue(client.p - client.g, metric)]);
  const show = chart(element, "clients-chart", () => `${current.name}: ${metric.title} of every client under the global model and under its personal model.`,
    draw, () => numbers(["client", "G" + unit(metric), "P" + unit(metric), "difference"], rows(), `${metric.title} of each client, ${current.name}`));
  const update = () => { words.textContent = summary(); show(); };
  onMetric.push(update);
});

// A map of clients and rounds for each number that describes clients: strengths of priors, or anything else.
const addMaps = (id, heading, explanation, strengths) => addSection(() => {
  const mapsOf = (run) => (run.described?.maps ?? []).filter((map) => map.strength === strengths);
  const having = runs.filter((run) => mapsOf(run).length);
  if (!having.length) return;
  const element = section(id, heading, explanation);
  const title = (name) => (!strengths ? name : name === "strength" ? "all layers" : name.replace(/^strength_/, "layer "));
  having.forEach((run, place) => {
    if (having.length > 1) element.append(make("h3", { text: run.name }));
    const grid = element.appendChild(make("div", { class: "grid" }));
    const { rounds } = run.described;
    mapsOf(run).forEach(({ name, clients, rows }, index) => {
      const [quantity, scaled, unscaled] = strengths ? ["lambda", Math.log10, (mark) => 10 ** mark] : [name, (value) => value, (mark) => mark];
      const z = rows.map((row) => row.map((value) => (value === null ? null : scaled(value))));
      const all = z.flat().filter((value) => value !== null);
      if (!all.length) return;
      const low = Math.min(...all), top = Math.max(...all), high = top > low ? top : low + 0.01;
      const marks = [0, 1, 2, 3, 4].map((part) => low + (part / 4) * (high - low));
      const last = rows.map((row) => row.at(-1)).filter((value) => value !== null);
      const range = last.length ? `from ${Math.min(...last).toPrecision(3)} to ${Math.max(...last).toPrecision(3)} over ${clients.length} clients at the end` : "of no client at the end";
      const words = strengths ? `${run.name}, ${title(name)}: lambda ${range}.` : `${run.name}: ${name} ${range}.`;
      chart(grid, `${id}-${place}-${index}`, () => words, () => ({
        data: [{ type: "heatmap", x: rounds, y: clients.map((_, client) => client), z, zmin: low, zmax: high, colorscale: "Viridis", hoverongaps: false,
          customdata: rows.map((row, client) => row.map((value) => [plain(clients[client]), value])),
          hovertemplate: "client %{customdata[0]}, round %{x}: %{customdata[1]:.4g}<extra></extra>",
          colorbar: { title: { text: plain(short(quantity, 12)) }, thickness: 12, tickvals: marks, ticktext: marks.map((mark) => unscaled(mark).toPrecision(2)) } }],
        layout: { height: 320, title: { text: plain(title(name)), font: { size: 14 } }, xaxis: { title: { text: "round" }, showgrid: false, zeroline: false },
          yaxis: { title: { text: "client" }, showgrid: false, zeroline: false, showticklabels: clients.length <= 20, tickmode: "array",
            tickvals: clients.map((_, client) => client), ticktext: clients.map((client) => plain(short(client, 10))) } },
      }), () => numbers(["client", `${quantity} in round ${rounds.at(-1)}`], rows.map((row, client) => [clients[client], row.at(-1)?.toPrecision(4) ?? "–"]),
        `${title(name)}: ${strengths ? "lambda of" : "value for"} each client at the end, ${run.name}`));
    });
  });
});

addMaps("strengths", "Strength of the prior, client by client", "How strongly the learned prior holds each client's personal model, at every "
  + "evaluation: lambda, geometric mean over seeds, a map for each layer that has its own. Clients are sorted by their strength at the end.", true);
addMaps("described", "Diagnostics, client by client", "What the methods report about each client's state at every evaluation, mean over seeds. "
  + "In every map, clients are sorted by their value at the end.", false);

addSection(() => {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.diagnostics)))];
  if (!names.length) return;
  const element = section("diagnostics", "Diagnostics", "What the methods report about local training at each evaluation, averaged over clients. " + aboutSeeds(runs));
  const grid = element.appendChild(make("div", { class: "grid" }));
  names.forEach((name, index) => {
    const having = runs.filter((run) => own(run.diagnostics, name));
    const last = (run) => run.diagnostics[name].mean.findLast((value) => value !== null);
    chart(grid, `diagnostic-${index}`, () => `${name} by round.`, () => ({
      data: having.flatMap((run) => band(run, run.diagnostics[name], {}, "%{y:.4g}")),
      layout: { height: 280, hovermode: "x unified", showlegend: runs.length > 1, legend: { orientation: "h", y: 1.2 },
        xaxis: { title: { text: "round" } }, yaxis: { title: { text: plain(name) } } },
    }), () => numbers(["method", "last value"], having.map((run) => [run.name, last(run)?.toPrecision(4) ?? "–"]), `${name}, last value, mean over seeds`));
  });
});
