// Sweeps: every point of a grid, as parallel coordinates and, of two settings, as a map.

const ticks = (values) => ({ tickvals: values.map((_, i) => i), ticktext: values.map((value) => String(Number(value.toPrecision(4)))) });

addSection(() => {
  if (!content.sweeps.length) return;
  const element = section("sweeps", "Hyperparameters", "The best test accuracy at every point of a grid. In the parallel coordinates, drag along an axis to select "
    + "the points that pass there.");
  content.sweeps.forEach((sweep, index) => {
    element.append(make("h3", { text: sweep.name }));
    const best = sweep.names.map((name) => `${name} = ${sweep.best[name].toPrecision(3)}`).join(", ");
    const rows = [...sweep.points].sort((a, b) => (b.P ?? -1) - (a.P ?? -1))
      .map((point) => [...sweep.names.map((name) => point[name].toPrecision(3)), fixed(point.G), fixed(point.P)]);
    const finite = sweep.points.filter((point) => point.G !== null && point.P !== null);
    chart(element, `sweep-parallel-${index}`, () => `Parallel coordinates of ${sweep.points.length} points; best P at ${best}.`, () => {
      const axis = (name, values) => {
        const tried = [...new Set(values)].sort((a, b) => a - b);
        return { label: plain(name), values: values.map((value) => tried.indexOf(value)), tickvals: tried.map((_, i) => i), ticktext: tried.map((value) => value.toPrecision(3)) };
      };
      const score = (key, title) => ({ label: title, values: finite.map((point) => point[key]) });
      return {
        data: [{ type: "parcoords", line: { color: finite.map((point) => point.P), colorscale: "Viridis", showscale: true, colorbar: { title: { text: "P (%)" }, thickness: 12 } },
          labelfont: { color: style("--ink") }, tickfont: { color: style("--ink") }, rangefont: { color: style("--quiet") },
          dimensions: [...sweep.names.map((name) => axis(name, finite.map((point) => point[name]))), score("G", "G (%)"), score("P", "P (%)")] }],
        layout: { height: 400, margin: { l: 60, r: 40, t: 60, b: 30 } },
      };
    }, () => numbers([...sweep.names, "G (%)", "P (%)"], rows, "Points, best P first"));
    if (sweep.names.length !== 2) return;
    const [down, across] = sweep.names;
    const tried = (name) => [...new Set(sweep.points.map((point) => point[name]))].sort((a, b) => a - b);
    chart(element, `sweep-map-${index}`, () => `P over ${down} and ${across}.`, () => ({
      data: [{ type: "heatmap", x: tried(across).map((_, i) => i), y: tried(down).map((_, i) => i),
        customdata: tried(down).map((row) => tried(across).map((column) => [row, column])),
        z: tried(down).map((row) => tried(across).map((column) => sweep.points.find((point) => point[down] === row && point[across] === column)?.P ?? null)),
        colorscale: "Viridis", texttemplate: narrow() ? "" : "%{z:.1f}", hovertemplate: `${inTemplate(down)} %{customdata[0]}, ${inTemplate(across)} %{customdata[1]}: P %{z:.2f} %<extra></extra>`, colorbar: { title: { text: "P (%)" }, thickness: 12 } }],
      layout: { height: 420, xaxis: { title: { text: plain(across) }, showgrid: false, ...ticks(tried(across)) }, yaxis: { title: { text: plain(down) }, showgrid: false, ...ticks(tried(down)) } },
    }));
  });
});
