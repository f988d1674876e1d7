// Uncertainty: how sure calibrated models are, whether they are right to be, and whom their sets or intervals cover.

addSection(() => {
  const having = runs.filter((run) => run.uncertainty);
  if (!having.length) return;
  const element = section("uncertainty", "Uncertainty", "The models of the chosen round, calibrated on validation samples (a temperature for the probabilities, "
    + "conformal sets or intervals) and measured on test samples: mean over clients, and mean over the tenth of the clients for whom it is worst.");
  let current = having[0];
  const found = () => current.uncertainty;
  const models = Object.keys(NAMES);
  if (having.length > 1) dropdown(element, "uncertainty-run", "Run:", having.map((run) => run.name), 0, (index) => { current = having[index]; update(); });
  const words = element.appendChild(make("p", { id: "uncertainty-summary", "aria-live": "polite" }));
  const holder = element.appendChild(make("div"));
  const promise = () => {
    const { own, own_samples: samples, coverage } = found();
    const alone = own.filter((each) => each).length;
    const needed = `the ${samples} validation samples needed for a calibration of its own`;
    const held = alone === 0 ? `None of the ${own.length} clients has ${needed}. All share one calibration, and the coverage holds only on average over all clients.`
      : alone === own.length ? `Each of the ${own.length} clients has ${needed}, and the coverage holds client by client.`
      : `Of ${own.length} clients, ${alone} ${alone === 1 ? "has" : "have"} ${alone === 1 ? needed : needed.replace("its own", "their own")}; for ${alone === 1 ? "this one" : "these"} the coverage holds `
        + "client by client. The others share one calibration, and for them it holds only on average over all clients.";
    return `${current.name}: ${Number(coverage.toFixed(2))} % of the labels should be covered. ${held}`;
  };
  const figures = () => table(["figure", ...models.flatMap((model) => [`${model}, before`, model, `${model}, worst tenth`])],
    found().G.figures.map((figure, place) => [figure.title + unit(figure), ...models.flatMap((model) => {
      const of = found()[model].figures[place];
      return [of.before, of.mean, of.worst_tenth].map((value) => shownValue(value, figure));
    })]), `Figures before and after calibration, ${current.name}`);

  // Reliability ---------------------------------------------------------------------------------------------
  const LOOKS = { before: { shade: "#8f8f8f", dash: "dot" }, after: { shade: COLOURS[0], dash: "solid" } };
  const reliability = () => {
    const layout = { ...twoPanels(400, 720), showlegend: true, legend: { orientation: "h", y: narrow() ? -0.14 : -0.28 } }, data = [];
    models.forEach((model, panel) => {
      const suffix = panel ? "2" : "", diagrams = found()[model].reliability;
      layout["xaxis" + suffix] = { title: { text: "confidence (%)" }, range: [0, 102] };
      layout["yaxis" + suffix] = { title: { text: "accuracy (%)" }, range: [0, 102] };
      data.push({ x: [0, 100], y: [0, 100], mode: "lines", line: { color: style("--line"), width: 1.4 }, hoverinfo: "skip", showlegend: false, ...axesOf(panel) });
      for (const [when, look] of Object.entries(LOOKS)) {
        const bins = diagrams ? diagrams[when].samples.map((samples, bin) => ({ samples, x: diagrams[when].confidence[bin], y: diagrams[when].accuracy[bin] }))
          .filter((bin) => bin.x !== null) : [];
        const most = Math.max(1, ...bins.map((bin) => bin.samples));
        data.push({ x: bins.map((bin) => 100 * bin.x), y: bins.map((bin) => 100 * bin.y), customdata: bins.map((bin) => bin.samples), name: `${when} calibration`,
          mode: "lines+markers", line: { color: look.shade, dash: look.dash, width: 2 }, marker: { color: look.shade, size: bins.map((bin) => 5 + 11 * Math.sqrt(bin.samples / most)) },
          legendgroup: when, showlegend: !panel, hovertemplate: "confidence %{x:.1f} %, accuracy %{y:.1f} %, %{customdata} samples<extra></extra>", ...axesOf(panel) });
      }
    });
    return { data, layout };
  };
  const bins = () => numbers(["model", "calibration", "samples", "confidence (%)", "accuracy (%)"], models.flatMap((model) => Object.keys(LOOKS).flatMap((when) => {
    const diagram = found()[model].reliability?.[when];
    const percent = (value) => fixed(value === null ? null : 100 * value);
    return diagram ? diagram.samples.map((count, bin) => [model, when, String(count), percent(diagram.confidence[bin]), percent(diagram.accuracy[bin])]).filter((row) => row[2] !== "0") : [];
  })), `Reliability diagram, ${current.name}`);
  const diagrams = having.some((run) => run.uncertainty.G.reliability);
  const showBins = diagrams ? chart(element, "reliability-chart", () => (found().G.reliability
    ? `${current.name}: accuracy by confidence in 15 bins, all clients' test samples; on the diagonal a model is as often right as it says. Larger dots: more samples.`
    : `${current.name} predicts numbers, which have no confidence.`), reliability, bins) : () => {};

  // Coverage ------------------------------------------------------------------------------------------------
  const clients = () => current.clients.map((name, i) => ({ name, own: found().own[i], g: found().G.clients[i], p: found().P.clients[i] }))
    .filter((client) => client.g !== null && client.p !== null);
  const covered = () => {
    const sorted = clients().sort((a, b) => a.p - b.p || a.g - b.g), level = found().coverage;
    const size = Math.max(3, Math.min(10, 600 / Math.max(1, sorted.length)));
    const lowest = sorted.reduce((low, client) => Math.min(low, client.g, client.p), level);
    const dots = (key, shade, title) => ({ x: sorted.map((_, index) => index), y: sorted.map((client) => client[key]), mode: "markers", name: title,
      marker: { color: shade, size, symbol: sorted.map((client) => (client.own ? "circle" : "circle-open")) }, text: sorted.map((client) => plain(client.name)),
      hovertemplate: `client %{text}: %{y:.2f} %<extra>${title}</extra>` });
    return {
      data: [{ x: [-0.5, sorted.length - 0.5], y: [level, level], mode: "lines", line: { color: style("--ink"), width: 1.4, dash: "dash" }, name: "requested", hoverinfo: "skip" },
        dots("g", COLOURS[0], "G"), dots("p", COLOURS[1], "P")],
      layout: { height: 400, showlegend: true, legend: { orientation: "h", y: 1.12 }, hovermode: "closest",
        xaxis: clientAxis(sorted.map((client) => client.name), "client, sorted by P", "rank of the client by P"), yaxis: { title: { text: "coverage (%)" }, range: [Math.max(0, lowest - 10), 102] } },
    };
  };
  const rows = () => clients().map((client) => [client.name, fixed(client.g), fixed(client.p), client.own ? "its own samples" : "all clients' samples"]);
  const showCovered = chart(element, "coverage-chart", () => `${current.name}: how many of each client's test labels are in their set or interval, mean over seeds. `
    + "Open circles: clients calibrated by all clients' samples.", covered, () => numbers(["client", "G (%)", "P (%)", "calibrated by"], rows(), `Coverage of each client, ${current.name}`));
  const update = () => { words.textContent = promise(); holder.replaceChildren(figures()); showBins(); showCovered(); };
  update();
});
