// The paper's tables, measured beside printed, and the deviation of one client's personal model.

addSection(() => {
  if (!content.tables.length) return;
  const element = section("paper", "Comparison with the paper", "Test accuracy in percent: the best over the rounds, mean over seeds; "
    + "in parentheses, the difference from the printed figure.");
  content.tables.forEach((each, index) => {
    element.append(make("h3", { text: each.title }));
    const rows = [...new Set(each.columns.flatMap((column) => column.cells.map((cell) => cell.row)))];
    Object.keys(NAMES).forEach((model) => overview(element, each, rows, model));
    const notes = new Map();
    for (const column of each.columns) {
      const fewer = new Set(column.cells.map((cell) => cell.rounds).filter((rounds) => rounds.includes(" of ")));
      const said = [fewer.size ? `${[...fewer].join(", ")} rounds` : null, column.other_data, column.note].filter(Boolean).join("; ");
      if (said) notes.set(said, [...(notes.get(said) ?? []), column.title]);
    }
    notes.forEach((titles, said) => element.append(make("p", { class: "quiet", text: `${titles.join("; ")}: ${said}.` })));
    inDetail(element, each, rows, `paper-${index}`);
  });
});

const signed = (value) => (value > 0 ? "+" : "") + fixed(value);

// All columns of a table for G or for P, with the best figure of each column highlighted.
const overview = (parent, each, rows, model) => {
  const cellOf = (column, row) => column.cells.find((cell) => cell.row === row && cell.model === model);
  const having = rows.filter((row) => each.columns.some((column) => cellOf(column, row)));
  if (!having.length) return;
  const best = each.columns.map((column) => Math.max(...having.map((row) => cellOf(column, row)?.mean ?? -1)));
  const said = (cell) => (!cell ? "" : cell.mean === null ? "diverged" : fixed(cell.mean) + (cell.difference === null ? "" : ` (${signed(cell.difference)})`));
  parent.append(table(["method", ...each.columns.map((column) => column.title)],
    having.map((row) => [row, ...each.columns.map((column) => said(cellOf(column, row)))]), `${each.title}: ${NAMES[model]}`,
    (r, c) => c > 0 && having.length > 1 && cellOf(each.columns[c - 1], having[r])?.mean === best[c - 1]));
};

// One column of a table, chosen by the reader: measured beside printed, the curves, and all numbers.
const inDetail = (parent, each, rows, id) => {
  let current = each.columns.find((column) => !column.other_data) ?? each.columns[0];
  const bases = [...new Set(rows.map((row) => row.split("+")[0]))];
  const looks = rows.map((row) => {
    const [base, variant] = row.split("+");
    return { name: row, shade: colour(bases.indexOf(base)), dash: { ft: "dash", am: "dashdot" }[variant] ?? "solid" };
  });
  const summary = () => {
    const leaders = ["P", "G"].map((model) => {
      const cells = current.cells.filter((cell) => cell.model === model && cell.mean !== null);
      const first = cells.reduce((a, b) => (a && a.mean >= b.mean ? a : b), null);
      return first && `best ${model}: ${first.row}, ${fixed(first.mean)} %`;
    });
    return `${current.title}: ${leaders.filter(Boolean).join("; ") || "all diverged"}.`;
  };
  const words = make("p", { id: id + "-summary", "aria-live": "polite", text: summary() });
  const withStd = (mean, std) => (mean === null ? "–" : `${fixed(mean)} ± ${fixed(std)}`);
  const figures = () => {
    const chosen = current.cells.some((cell) => cell.chosen !== null); // only runs with validation samples have a chosen round
    return numbers(["method", "model", "best (%)", "printed (%)", "difference", "last round (%)", ...(chosen ? ["chosen round (%)"] : []), "seeds", "rounds"],
      current.cells.map((cell) => [cell.row, cell.model, cell.mean === null ? "diverged" : withStd(cell.mean, cell.std), fixed(cell.paper),
        current.other_data ? "different data" : cell.difference === null ? "" : signed(cell.difference), withStd(cell.last, cell.last_std),
        ...(chosen ? [withStd(cell.chosen, cell.chosen_std)] : []), String(cell.n), cell.rounds]),
      `${each.title}: ${current.title}`);
  };
  const ofColumn = []; // functions that update the charts of the chosen column
  if (each.columns.length > 1) {
    dropdown(parent, id + "-column", `${each.title}, in detail:`, each.columns.map((column) => column.title), each.columns.indexOf(current), (index) => {
      current = each.columns[index];
      words.textContent = summary();
      ofColumn.forEach((show) => show());
    });
  }
  parent.append(words);
  const printed = () => (!current.cells.some((cell) => cell.paper !== null) ? ""
    : current.other_data ? "; diamonds: printed in the paper, on different data, for orientation" : "; diamonds: printed in the paper");
  ofColumn.push(chart(parent, id + "-beside", () => `${current.title}. Dots: measured, with the standard deviation over seeds${printed()}.`, () => beside(current, rows), figures));
  if (!each.columns.some((column) => column.curves.length)) return;
  const many = rows.length > 8; // then the variants with FT and AM are hidden at first
  const shown = new Set(rows.filter((row) => !many || !row.includes("+")));
  filter(parent, looks, shown, () => byRounds(), `Curves of ${each.title}`);
  const items = () => looks.map((look) => ({ ...look, ...current.curves.find((curve) => curve.row === look.name) })).filter((item) => item.rounds);
  const byRounds = chart(parent, id + "-rounds", () => `${current.title}: accuracy by round. ${aboutSeeds(items())}`,
    () => byRound(items().filter((item) => shown.has(item.name)), ACCURACY), () => atTheEnd(items(), ACCURACY, `${current.title}: accuracy at the end, mean over seeds`));
  ofColumn.push(byRounds);
};

const beside = (column, rows) => {
  const having = rows.filter((row) => column.cells.some((cell) => cell.row === row));
  const data = [], layout = { ...twoPanels(Math.max(350, 130 + 26 * having.length), Math.max(600, 220 + 56 * having.length)), hovermode: "closest" };
  Object.keys(NAMES).forEach((model, panel) => {
    const all = column.cells.filter((cell) => cell.model === model);
    const cells = all.filter((cell) => cell.mean !== null), printed = all.filter((cell) => cell.paper !== null);
    const place = (cell) => having.indexOf(cell.row);
    const both = column.other_data ? [] : cells.filter((cell) => cell.paper !== null); // joined by a line
    data.push({ x: both.flatMap((cell) => [cell.paper, cell.mean, null]), y: both.flatMap((cell) => [place(cell), place(cell), null]),
      mode: "lines", line: { color: style("--line"), width: 2 }, hoverinfo: "skip", ...axesOf(panel) });
    data.push({ x: printed.map((cell) => cell.paper), y: printed.map(place), mode: "markers", text: printed.map((cell) => plain(cell.row)),
      marker: { symbol: "diamond-open", size: 10, color: style("--quiet"), line: { width: 2 } }, hovertemplate: "%{text}: printed %{x:.2f} %<extra></extra>", ...axesOf(panel) });
    data.push({ x: cells.map((cell) => cell.mean), y: cells.map(place), mode: "markers", text: cells.map((cell) => plain(cell.row)), customdata: cells.map((cell) => cell.std),
      error_x: { type: "data", array: cells.map((cell) => cell.std), color: COLOURS[0], thickness: 1.5 },
      marker: { size: 9, color: COLOURS[0] }, hovertemplate: "%{text}: measured %{x:.2f} ± %{customdata:.2f} %<extra></extra>", ...axesOf(panel) });
    const suffix = panel ? "2" : "";
    layout["xaxis" + suffix] = { title: { text: "test accuracy (%)" } };
    layout["yaxis" + suffix] = { tickvals: having.map((_, i) => i), ticktext: having.map(plain), range: [having.length - 0.4, -0.6], zeroline: false };
  });
  return { data, layout };
};

addSection(() => {
  if (!content.deviations.length) return;
  const element = section("deviation", "Deviation", "Loss of the first client's personal model by label, minus the mean over all clients' models: on all clients' test samples (ΔG) "
    + "and on its own (ΔL). Below zero, it is better than the others. Where the client has no samples of a label, its own loss counts as "
    + "zero, so ΔL only shows how hard the label is for the others (open circles).");
  content.deviations.forEach((each, index) => {
    const methods = Object.entries(each.methods);
    const rows = methods.flatMap(([name, values]) => [["ΔG", values.global], ["ΔL", values.local]].map(([kind, list]) => [name, kind, ...list.map((value) => fixed(value, 3))]));
    chart(element, `deviation-chart-${index}`, () => `${each.title}: deviation of ${methods.length} methods by label.`, () => {
      const data = [];
      ["global", "local"].forEach((kind, panel) => {
        const labels = each.samples[kind].map((_, label) => label);
        data.push({ type: "bar", x: labels, y: each.samples[kind], name: "test samples", marker: { color: style("--grid") }, showlegend: panel === 0,
          legendgroup: "samples", hovertemplate: "%{y} test samples<extra></extra>", xaxis: panel ? "x2" : "x", yaxis: panel ? "y2" : "y" });
        methods.forEach(([name, values], m) => data.push({
          x: labels, y: values[kind], name: plain(name), mode: "lines+markers", line: { color: colour(m) },
          marker: { symbol: each.samples[kind].map((count) => count ? "circle" : "circle-open") }, legendgroup: name, showlegend: panel === 0,
          hovertemplate: `${inTemplate(name)}: %{y:.3f}<extra></extra>`, xaxis: panel ? "x2" : "x", yaxis: panel ? "y4" : "y3" }));
      });
      const layout = { height: narrow() ? 760 : 440, showlegend: true, legend: { orientation: "h", y: 1.14 },
        grid: { rows: narrow() ? 2 : 1, columns: narrow() ? 1 : 2, pattern: "independent", ygap: 0.25 },
        xaxis: { title: { text: "label" }, dtick: 1 }, xaxis2: { title: { text: "label" }, dtick: 1 },
        yaxis: { side: "right", showgrid: false, tickfont: { color: style("--quiet") } },
        yaxis2: { side: "right", showgrid: false, tickfont: { color: style("--quiet") } },
        yaxis3: { overlaying: "y", side: "left", anchor: "x", tickmode: "auto", title: { text: "ΔG" } },
        yaxis4: { overlaying: "y2", side: "left", anchor: "x2", tickmode: "auto", title: { text: "ΔL" } } };
      return { data, layout };
    }, () => numbers(["method", "", ...methods[0][1].global.map((_, label) => `label ${label}`)], rows, "Deviations by label"));
  });
});
