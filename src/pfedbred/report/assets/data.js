// Data distribution: the samples of each label on each client, part by part.

addSection(() => {
  if (!content.federations.length) return;
  const parts = { train: "Training", validation: "Validation", test: "Test" };
  const element = section("data", "Data distribution", "Samples of each label on each client, by part: how heterogeneous the clients are.");
  content.federations.forEach((each, index) => Object.keys(parts).filter((part) => each[part]).forEach((part) => {
    const counts = each[part];
    const having = counts.reduce((sum, row) => sum + row.filter((count) => count > 0).length / row.length, 0) / counts.length;
    const clients = `${each.clients.toLocaleString("en")} clients${each.clients > counts.length ? `, ${counts.length} of them shown` : ""}`;
    const words = `${parts[part]} samples of ${each.name}: ${clients}; `
      + `on average, a client has samples of ${Math.round(100 * having)} % of the labels.`;
    const rows = counts.map((row, client) => [each.names[client], ...row.map(String)]);
    chart(element, `data-chart-${index}-${part}`, () => words, () => ({
      data: [{ type: "heatmap", z: each.labels.map((_, label) => counts.map((row) => (row[label] === 0 ? null : row[label]))),
        x: each.names.map((_, client) => client), y: each.labels.map((_, label) => label), customdata: each.labels.map((name) => counts.map((_, client) => [plain(each.names[client]), plain(name)])),
        colorscale: "Viridis", reversescale: true, hovertemplate: "client %{customdata[0]}, label %{customdata[1]}: %{z} samples<extra></extra>",
        colorbar: { title: { text: "samples" }, thickness: 12 }, hoverongaps: false }],
      layout: { height: Math.min(640, 180 + 22 * each.labels.length), xaxis: { ...clientAxis(each.names, "client", "place of the client in the data"), showgrid: false, zeroline: false },
        yaxis: { title: { text: "label" }, showgrid: false, zeroline: false, tickmode: each.labels.length <= 20 ? "array" : "auto",
          tickvals: each.labels.map((_, label) => label), ticktext: each.labels.map((name) => plain(short(name, 14))) } },
    }), () => numbers(["client", ...each.labels], rows, `${parts[part]} samples by client and label, ${each.name}`));
  }));
});
