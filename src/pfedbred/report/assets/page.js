"use strict";
// Builds the page from the JSON in #content. Text from data only ever becomes text, never markup.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const main = document.getElementById("main");
  const COLOURS = ["#2f7fd1", "#e06c1f", "#1a9c74", "#c76aa0", "#45b3e0", "#d99a00", "#8f8f8f", "#a3844a", "#7a67d6", "#c94f4f"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const NAMES = { G: "Global model (G)", P: "Personal models (P)" };
  const charts = []; // functions that draw a chart again: after a change of theme or width
  const soon = new Map(); // charts that have not come near the window yet: the page opens at once, however many there are
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      soon.get(entry.target)();
      soon.delete(entry.target);
    }
  }, { rootMargin: "600px" });
  window.addEventListener("beforeprint", () => { for (const draw of soon.values()) draw(); });

  const make = (tag, given = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (name === "text") element.textContent = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const percent = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 700;
  const colour = (index) => COLOURS[index] ?? hue(index);
  const hue = (index) => { // after the ten of the list: around the circle by the golden angle, so that neighbours differ
    const part = (shift) => Math.round(255 * (0.5 + 0.3 * Math.cos(2.39996 * index + shift))).toString(16).padStart(2, "0");
    return "#" + part(0) + part(2.1) + part(4.2);
  };
  const dash = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];
  const faint = (hex) => hex + "2e";
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads some markup in texts
  const inTemplate = (text) => plain(text).replaceAll("%", "&#37;"); // and %{y} in the text of a label is not the number y

  const section = (id, title, words) => {
    const element = make("section", { id, "aria-labelledby": id + "-title" }, make("h2", { id: id + "-title", text: title }));
    if (words) element.append(make("p", { class: "quiet", text: words }));
    main.append(element);
    document.getElementById("sections").append(make("li", {}, make("a", { href: "#" + id, text: title })));
    return element;
  };

  const table = (columns, rows, caption, best = () => false) => {
    const head = make("tr", {}, ...columns.map((each) => make("th", { scope: "col", text: each })));
    const body = rows.map((row, r) => make("tr", {}, ...row.map((cell, c) =>
      make(c === 0 ? "th" : "td", { scope: c === 0 ? "row" : null, text: cell, class: best(r, c) ? "best" : null }))));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      make("table", {}, make("caption", { text: caption }), make("thead", {}, head), make("tbody", {}, ...body)));
  };

  const numbers = (columns, rows, caption) =>
    make("details", {}, make("summary", { text: "The numbers" }), table(columns, rows, caption));

  // A chart with words for those who do not see it, and its numbers in a table below. All three are functions; what is
  // given back calls them again, when something else is to be shown. A table that is open stays open.
  const chart = (parent, id, words, draw, below) => {
    const place = make("div", { class: "chart", id, role: "img" }), caption = make("figcaption"), holder = make("div");
    parent.append(make("figure", {}, place, caption, holder));
    let near = false;
    const describe = () => {
      caption.textContent = words();
      place.setAttribute("aria-label", words());
      const open = holder.querySelector("details")?.open;
      holder.replaceChildren(...(below ? [below()] : []));
      if (open) holder.querySelector("details").open = true;
    };
    describe();
    const redraw = () => {
      if (!near) return;
      const { data, layout } = draw();
      const axis = { gridcolor: style("--grid"), linecolor: style("--line"), zerolinecolor: style("--line"), automargin: true };
      for (const name of Object.keys(layout)) if (/^[xy]axis/.test(name)) layout[name] = { ...axis, ...layout[name] };
      const common = {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
        font: { color: style("--ink"), size: 13 }, margin: { l: 56, r: 18, t: 36, b: 48 },
        hoverlabel: { bgcolor: style("--panel"), bordercolor: style("--line"), font: { color: style("--ink") } },
      };
      Plotly.react(place, data, { ...common, ...layout }, { responsive: true, displaylogo: false, displayModeBar: false });
    };
    charts.push(redraw);
    soon.set(place, () => { near = true; redraw(); });
    watcher.observe(place);
    return () => { describe(); redraw(); };
  };

  // Runs ------------------------------------------------------------------------------------------------------

  const runs = content.runs;
  for (const run of runs) {
    if (run.clients) run.clients = run.clients.names.map((name, i) => ({ name, g: run.clients.g[i], p: run.clients.p[i] }));
  }
  const measured = (model) => (model.best === null ? "diverged" : `${percent(model.best)} ± ${percent(model.std)}`);

  const outcome = () => {
    const best = Math.max(...runs.map((run) => run.P.best ?? -1));
    const rows = runs.map((run) => [
      run.name, run.dataset, run.model, measured(run.G), measured(run.P), percent(run.P.worst_tenth), String(run.seeds), String(run.rounds.at(-1)),
      run.milliseconds.toPrecision(3),
    ]);
    const columns = ["method", "data", "model", "G (%)", "P (%)", "worst tenth (%)", "seeds", "rounds", "ms a round"];
    const element = section("table", "Outcome", "Test accuracy: the best over the rounds, mean ± standard deviation over seeds. "
      + "G is the global model on all test samples, P each client's personal model on its own. Worst tenth: mean P of the tenth of "
      + "the clients for whom it is lowest, at the end.");
    element.append(table(columns, rows, "Outcome of each run", (r, c) => c === 4 && runs.length > 1 && runs[r].P.best === best));
  };

  // Boxes to choose whose curves are shown.
  const filter = (parent, items, shown, show, title = "Shown") => {
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
  const settled = (curves) => {
    const values = curves.flatMap((curve) => curve.slice(Math.floor(curve.length / 20))).filter((value) => value !== null);
    if (!values.length) return {};
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    const margin = Math.max(1, 0.06 * (high - low));
    return { range: [Math.max(0, low - margin), Math.min(101, high + margin)] };
  };

  const byRound = (items) => {
    const data = [], layout = { ...twoPanels(430, 720), hovermode: "x unified" };
    Object.keys(NAMES).forEach((model, panel) => {
      const having = items.filter((item) => item[model]);
      data.push({ x: [], y: [], hoverinfo: "skip", ...axesOf(panel) }); // else a panel without a curve has no axes
      for (const item of having) {
        const series = item[model];
        if (item.seeds > 1) {
          data.push({ x: [...item.rounds, ...[...item.rounds].reverse()], y: [...series.high, ...[...series.low].reverse()],
            fill: "toself", fillcolor: faint(item.shade), line: { width: 0 }, mode: "lines", hoverinfo: "skip", ...axesOf(panel) });
        }
        data.push({ x: item.rounds, y: series.mean, name: plain(item.name), mode: item.rounds.length > 1 ? "lines" : "markers",
          line: { color: item.shade, dash: item.dash, width: 2 }, marker: { color: item.shade, size: 9 },
          hovertemplate: "%{y:.2f} %", ...axesOf(panel) });
      }
      const suffix = panel ? "2" : "";
      layout["xaxis" + suffix] = { title: { text: "round" } };
      layout["yaxis" + suffix] = { title: { text: "test accuracy (%)" }, ...settled(having.map((item) => item[model].mean)) };
    });
    return { data, layout };
  };

  const ofSeeds = (items) => (items.some((item) => item.seeds > 1)
    ? "Lines are means over seeds, bands reach from the lowest to the highest seed." : "One seed.");
  const atTheEnd = (items, caption) => numbers(["method", "round", "G (%)", "P (%)"], items.map((item) =>
    [item.name, String(item.rounds.at(-1)), percent(item.G?.mean.at(-1)), percent(item.P?.mean.at(-1))]), caption);

  const curves = () => {
    const element = section("curves", "Accuracy by round", ofSeeds(runs));
    const items = runs.map((run, index) => ({ ...run, shade: colour(index), dash: dash(index) }));
    const shown = new Set(items.map((item) => item.name));
    if (runs.length > 1) filter(element, items, shown, () => show());
    const leader = (model) => runs.reduce((a, b) => ((b[model].best ?? -1) > (a[model].best ?? -1) ? b : a));
    const words = Object.keys(NAMES).map((model) => `best ${model}: ${leader(model).name}, ${percent(leader(model)[model].best)} %`);
    const show = chart(element, "curves-chart", () => `Test accuracy by round of ${runs.length} run${runs.length > 1 ? "s" : ""}; ${words.join("; ")}.`,
      () => byRound(items.filter((item) => shown.has(item.name))), () => atTheEnd(runs, "Accuracy at the end, mean over seeds"));
  };

  const clients = () => {
    const with_clients = runs.filter((run) => run.clients);
    if (!with_clients.length) return;
    const element = section("clients", "Client by client", "Who gains from personalising, and who loses: each client's own test accuracy "
      + "under the global model and under its personal model, at the end, mean over seeds, in order of G.");
    let current = with_clients.reduce((a, b) => ((b.P.best ?? -1) > (a.P.best ?? -1) ? b : a));
    const summary = (run) => {
      const gain = run.clients.filter((client) => client.p > client.g).length;
      const lose = run.clients.filter((client) => client.p < client.g).length;
      return `${run.name}: of ${run.clients.length} clients ${gain} gain, ${lose} lose, ${run.clients.length - gain - lose} are level.`;
    };
    const words = make("p", { id: "clients-summary", "aria-live": "polite", text: summary(current) });
    const rows = () => current.clients.map((client) => [client.name, percent(client.g), percent(client.p), percent(client.p - client.g)]);
    const columns = ["client", "G (%)", "P (%)", "difference"];
    if (with_clients.length > 1) {
      const select = make("select", { id: "clients-run", on: { change: (event) => {
        current = with_clients[Number(event.target.value)];
        words.textContent = summary(current);
        show();
      } } }, ...with_clients.map((run, index) => make("option", { value: index, text: run.name, selected: run === current })));
      element.append(make("p", {}, make("label", { for: "clients-run", text: "Run: " }), select));
    }
    element.append(words);
    const show = chart(element, "clients-chart", () => `${current.name}: accuracy of every client under the global model and under its own.`, () => {
      const sorted = [...current.clients].sort((a, b) => a.g - b.g || a.p - b.p);
      const place = sorted.map((_, index) => index);
      const joins = { x: [], y: [] };
      sorted.forEach((client, index) => { joins.x.push(index, index, null); joins.y.push(client.g, client.p, null); });
      const size = Math.max(3, Math.min(10, 600 / sorted.length));
      const dots = (key, shade, title) => ({ x: place, y: sorted.map((client) => client[key]), mode: "markers", name: title,
        marker: { color: shade, size }, text: sorted.map((client) => plain(client.name)), hovertemplate: `client %{text}: %{y:.1f} %<extra>${title}</extra>` });
      return {
        data: [{ ...joins, mode: "lines", line: { color: style("--line"), width: sorted.length > 300 ? 0.6 : 1.4 }, hoverinfo: "skip", showlegend: false },
          dots("g", COLOURS[0], "G"), dots("p", COLOURS[1], "P")],
        layout: { height: 400, showlegend: true, legend: { orientation: "h", y: 1.12 }, hovermode: "closest",
          xaxis: { title: { text: "clients, in order of G" } }, yaxis: { title: { text: "test accuracy (%)" } } },
      };
    }, () => numbers(columns, rows(), `Accuracy of each client, ${current.name}`));
  };

  // Data ------------------------------------------------------------------------------------------------------

  const federations = () => {
    if (!content.federations.length) return;
    const element = section("data", "Who has what", "Training samples of each label on each client: how far from alike the clients are.");
    content.federations.forEach((each, index) => {
      const counts = each.train;
      const missing = counts.reduce((sum, row) => sum + row.filter((count) => count === 0).length / row.length, 0) / counts.length;
      const words = `${each.name}: ${each.clients.toLocaleString("en")} clients${each.clients > counts.length ? `, ${counts.length} of them shown` : ""}; `
        + `a client lacks ${Math.round(100 * missing)} % of the labels on average.`;
      const rows = counts.map((row, client) => [each.names[client], ...row.map(String)]);
      chart(element, `data-chart-${index}`, () => words, () => ({
        data: [{ type: "heatmap", z: each.labels.map((_, label) => counts.map((row) => (row[label] === 0 ? null : row[label]))),
          x: each.names.map((_, client) => client), y: each.labels.map((_, label) => label), customdata: each.labels.map((name) => counts.map((_, client) => [plain(each.names[client]), plain(name)])),
          colorscale: "Viridis", reversescale: true, hovertemplate: "client %{customdata[0]}, label %{customdata[1]}: %{z} samples<extra></extra>",
          colorbar: { title: { text: "samples" }, thickness: 12 }, hoverongaps: false }],
        layout: { height: Math.min(640, 180 + 22 * each.labels.length), xaxis: { title: { text: "client" }, showgrid: false, zeroline: false },
          yaxis: { title: { text: "label" }, showgrid: false, zeroline: false, tickmode: each.labels.length <= 20 ? "array" : "auto",
            tickvals: each.labels.map((_, label) => label), ticktext: each.labels.map((name) => plain(name.length > 14 ? name.slice(0, 13) + "…" : name)) } },
      }), () => numbers(["client", ...each.labels], rows, `Training samples by client and label, ${each.name}`));
    });
  };

  // Sweeps ----------------------------------------------------------------------------------------------------

  const ticks = (values) => ({ tickvals: values.map((_, i) => i), ticktext: values.map((value) => String(Number(value.toPrecision(4)))) });

  const sweeps = () => {
    if (!content.sweeps.length) return;
    const element = section("sweeps", "Hyper-parameters", "Every point of a grid, by its best test accuracy. In the first picture, drag along "
      + "an axis to keep only the points that pass there.");
    content.sweeps.forEach((sweep, index) => {
      element.append(make("h3", { text: sweep.name }));
      const best = sweep.names.map((name) => `${name} = ${sweep.best[name].toPrecision(3)}`).join(", ");
      const rows = sweep.points.map((point) => [...sweep.names.map((name) => point[name].toPrecision(3)), percent(point.G), percent(point.P)]);
      rows.sort((a, b) => Number(b.at(-1)) - Number(a.at(-1)));
      const sound = sweep.points.filter((point) => point.G !== null && point.P !== null);
      chart(element, `sweep-parallel-${index}`, () => `Parallel coordinates of ${sweep.points.length} points; best P at ${best}.`, () => {
        const axis = (name, values) => {
          const tried = [...new Set(values)].sort((a, b) => a - b);
          return { label: plain(name), values: values.map((value) => tried.indexOf(value)), tickvals: tried.map((_, i) => i), ticktext: tried.map((value) => value.toPrecision(3)) };
        };
        const score = (key, title) => ({ label: title, values: sound.map((point) => point[key]) });
        return {
          data: [{ type: "parcoords", line: { color: sound.map((point) => point.P), colorscale: "Viridis", showscale: true, colorbar: { title: { text: "P (%)" }, thickness: 12 } },
            labelfont: { color: style("--ink") }, tickfont: { color: style("--ink") }, rangefont: { color: style("--quiet") },
            dimensions: [...sweep.names.map((name) => axis(name, sound.map((point) => point[name]))), score("G", "G (%)"), score("P", "P (%)")] }],
          layout: { height: 400, margin: { l: 60, r: 40, t: 60, b: 30 } },
        };
      }, () => numbers([...sweep.names, "G (%)", "P (%)"], rows, "Points, the best P first"));
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
  };

  // The paper's tables and deviations -------------------------------------------------------------------------

  const papers = () => {
    if (!content.tables.length) return;
    const element = section("paper", "Beside the paper", "Test accuracy in percent: the best over the rounds, mean over seeds; "
      + "in brackets the difference from what the paper prints.");
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
  };

  const signed = (value) => (value > 0 ? "+" : "") + percent(value);

  // All columns of a table for G or for P; the best of a column stands out.
  const overview = (parent, each, rows, model) => {
    const cellOf = (column, row) => column.cells.find((cell) => cell.row === row && cell.model === model);
    const having = rows.filter((row) => each.columns.some((column) => cellOf(column, row)));
    if (!having.length) return;
    const best = each.columns.map((column) => Math.max(...having.map((row) => cellOf(column, row)?.mean ?? -1)));
    const said = (cell) => (!cell ? "" : cell.mean === null ? "diverged" : percent(cell.mean) + (cell.difference === null ? "" : ` (${signed(cell.difference)})`));
    parent.append(table(["method", ...each.columns.map((column) => column.title)],
      having.map((row) => [row, ...each.columns.map((column) => said(cellOf(column, row)))]), `${each.title}: ${NAMES[model]}`,
      (r, c) => c > 0 && having.length > 1 && cellOf(each.columns[c - 1], having[r])?.mean === best[c - 1]));
  };

  // One column of a table, to be chosen: measured beside printed, the curves, and all numbers.
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
        return first && `best ${model}: ${first.row}, ${percent(first.mean)} %`;
      });
      return `${current.title}: ${leaders.filter(Boolean).join("; ") || "all diverged"}.`;
    };
    const words = make("p", { id: id + "-summary", "aria-live": "polite", text: summary() });
    const figures = () => numbers(["method", "model", "measured (%)", "printed (%)", "difference", "seeds", "rounds"],
      current.cells.map((cell) => [cell.row, cell.model, cell.mean === null ? "diverged" : `${percent(cell.mean)} ± ${percent(cell.std)}`, percent(cell.paper),
        current.other_data ? "other data" : cell.difference === null ? "" : signed(cell.difference), String(cell.n), cell.rounds]),
      `${each.title}: ${current.title}`);
    const ofColumn = []; // what shows the charts of the chosen column
    if (each.columns.length > 1) {
      const select = make("select", { id: id + "-column", on: { change: (event) => {
        current = each.columns[Number(event.target.value)];
        words.textContent = summary();
        ofColumn.forEach((show) => show());
      } } }, ...each.columns.map((column, index) => make("option", { value: index, text: column.title, selected: column === current })));
      parent.append(make("p", {}, make("label", { for: id + "-column", text: `${each.title}, in detail: ` }), select));
    }
    parent.append(words);
    const printed = () => (!current.cells.some((cell) => cell.paper !== null) ? ""
      : current.other_data ? "; diamonds: what the paper prints, of other data, for orientation" : "; diamonds: what the paper prints");
    ofColumn.push(chart(parent, id + "-beside", () => `${current.title}. Dots: measured, with the deviation over seeds${printed()}.`, () => beside(current, rows), figures));
    if (!each.columns.some((column) => column.curves.length)) return;
    const many = rows.length > 8; // then methods as they are, without FT and AM, to begin with
    const shown = new Set(rows.filter((row) => !many || !row.includes("+")));
    filter(parent, looks, shown, () => byRounds(), `Curves of ${each.title}`);
    const items = () => looks.map((look) => ({ ...look, ...current.curves.find((curve) => curve.row === look.name) })).filter((item) => item.rounds);
    const byRounds = chart(parent, id + "-rounds", () => `${current.title}: accuracy by round. ${ofSeeds(items())}`,
      () => byRound(items().filter((item) => shown.has(item.name))), () => atTheEnd(items(), `${current.title}: accuracy at the end, mean over seeds`));
    ofColumn.push(byRounds);
  };

  const beside = (column, rows) => {
    const having = rows.filter((row) => column.cells.some((cell) => cell.row === row));
    const data = [], layout = { ...twoPanels(Math.max(350, 130 + 26 * having.length), Math.max(600, 220 + 56 * having.length)), hovermode: "closest" };
    Object.keys(NAMES).forEach((model, panel) => {
      const all = column.cells.filter((cell) => cell.model === model);
      const cells = all.filter((cell) => cell.mean !== null), printed = all.filter((cell) => cell.paper !== null);
      const place = (cell) => having.indexOf(cell.row);
      const both = column.other_data ? [] : cells.filter((cell) => cell.paper !== null); // there is a difference to be seen
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

  const deviations = () => {
    if (!content.deviations.length) return;
    const element = section("deviation", "Deviation", "The loss of the first client's personal model by label, from the mean of all clients' models: "
      + "on all clients' test samples (ΔG) and on its own (ΔL). Below zero it is better than the others; where the client has no samples of a "
      + "label, its own loss counts as zero, so that ΔL only shows how hard the label is for the others (open circles).");
    content.deviations.forEach((each, index) => {
      const methods = Object.entries(each.methods);
      const rows = methods.flatMap(([name, values]) => [["ΔG", values.global], ["ΔL", values.local]].map(([kind, list]) => [name, kind, ...list.map((value) => percent(value, 3))]));
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
  };

  // Settings --------------------------------------------------------------------------------------------------

  const settings = () => {
    if (!content.commands.length) return;
    const element = section("settings", "To make it again", "The commands, and every setting of a run or sweep, defaults included.");
    content.commands.forEach((each) => {
      element.append(make("h3", { text: each.name }), make("pre", { tabindex: "0", text: each.command }));
      const rows = Object.entries(each.settings).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
      if (rows.length) element.append(make("details", {}, make("summary", { text: "Settings" }), table(["setting", "value"], rows, `Settings of ${each.name}`)));
    });
  };

  if (runs.length) { outcome(); curves(); clients(); }
  papers();
  deviations();
  sweeps();
  federations();
  settings();

  const again = () => charts.forEach((redraw) => redraw());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = narrow();
  window.addEventListener("resize", () => { if (narrow() !== width) { width = narrow(); again(); } });
  document.documentElement.dataset.ready = "yes";
})();
