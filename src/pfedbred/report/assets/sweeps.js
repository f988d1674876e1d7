// Sweeps: every point of a grid, as parallel coordinates and, of two settings, as a map.

const ticks = (values) => ({ tickvals: values.map((_, i) => i), ticktext: values.map((value) => String(Number(value.toPrecision(4)))) });

addSection(() => {
  if (!content.sweeps.length) return;
  const element = section("sweeps", "Hyperparameters", "The figures of every point on the test samples, and the point whose personal models are best on the "
    + "samples it is chosen by. In the parallel coordinates, drag along an axis to select the points that pass there.");
  content.sweeps.forEach((sweep, index) => {
    const of = sweep.metric, quoted = FIGURES[sweep.figures[0]];
    const title = (model) => `${model}, ${quoted}${unit(of)}`;
    element.append(make("h3", { text: sweep.name }));
    const best = sweep.names.map((name) => `${name} = ${sweep.best[name].toPrecision(3)}`).join(", ");
    const early = sweep.points.some((point) => point.rounds !== sweep.points[0].rounds);
    const rank = (point) => (point.score === null ? -Infinity : of.higher_is_better ? point.score : -point.score);
    const rows = [...sweep.points].sort((a, b) => rank(b) - rank(a)).map((point) => [...sweep.names.map((name) => point[name].toPrecision(3)),
      ...(early ? [String(point.rounds)] : []), ...Object.keys(NAMES).flatMap((model) => sweep.figures.map((figure) => shownValue(point[model][figure], of)))]);
    const heads = Object.keys(NAMES).flatMap((model) => sweep.figures.map((figure) => `${model}, ${FIGURES[figure]}${unit(of)}`));
    const finite = sweep.points.filter((point) => point.G.value !== null && point.P.value !== null);
    chart(element, `sweep-parallel-${index}`, () => `Parallel coordinates of ${sweep.points.length} points; best P on ${sweep.chosen_on} samples at ${best}.`, () => {
      const axis = (name, values) => {
        const tried = [...new Set(values)].sort((a, b) => a - b);
        return { label: plain(name), values: values.map((value) => tried.indexOf(value)), tickvals: tried.map((_, i) => i), ticktext: tried.map((value) => value.toPrecision(3)) };
      };
      const score = (model) => ({ label: title(model), values: finite.map((point) => point[model].value) });
      return {
        data: [{ type: "parcoords", line: { color: finite.map((point) => point.P.value), colorscale: "Viridis", showscale: true, colorbar: { title: { text: "P" + unit(of) }, thickness: 12 } },
          labelfont: { color: style("--ink") }, tickfont: { color: style("--ink") }, rangefont: { color: style("--quiet") },
          dimensions: [...sweep.names.map((name) => axis(name, finite.map((point) => point[name]))), score("G"), score("P")] }],
        layout: { height: 400, margin: { l: 60, r: 40, t: 60, b: 30 } },
      };
    }, () => numbers([...sweep.names, ...(early ? ["rounds"] : []), ...heads], rows, `Points, best P on ${sweep.chosen_on} samples first`));
    const tried = (name) => [...new Set(sweep.points.map((point) => point[name]))].sort((a, b) => a - b);
    if (sweep.names.length !== 2 || tried(sweep.names[0]).length * tried(sweep.names[1]).length !== sweep.points.length) return; // no grid, no map
    const [down, across] = sweep.names;
    chart(element, `sweep-map-${index}`, () => `${title("P")} over ${down} and ${across}.`, () => ({
      data: [{ type: "heatmap", x: tried(across).map((_, i) => i), y: tried(down).map((_, i) => i),
        customdata: tried(down).map((row) => tried(across).map((column) => [row, column])),
        z: tried(down).map((row) => tried(across).map((column) => sweep.points.find((point) => point[down] === row && point[across] === column)?.P.value ?? null)),
        colorscale: "Viridis", texttemplate: narrow() ? "" : "%{z:.1f}", hovertemplate: `${inTemplate(down)} %{customdata[0]}, ${inTemplate(across)} %{customdata[1]}: P ${hovered("z", of)}<extra></extra>`, colorbar: { title: { text: "P" + unit(of) }, thickness: 12 } }],
      layout: { height: 420, xaxis: { title: { text: plain(across) }, showgrid: false, ...ticks(tried(across)) }, yaxis: { title: { text: plain(down) }, showgrid: false, ...ticks(tried(down)) } },
    }));
  });
});
