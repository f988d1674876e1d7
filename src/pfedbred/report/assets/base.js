// Helpers that the other scripts share: elements, sections, tables and charts. The page is built from the JSON in
// #content. Text from data only ever becomes text, never markup.

const content = JSON.parse(document.getElementById("content").textContent);
const main = document.getElementById("main");

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
const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined); // names come from data
const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 700;
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads some markup in texts
const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const inTemplate = (text) => plain(text).replaceAll("%", "&#37;"); // else %{y} in a name would become the number y

// Sections --------------------------------------------------------------------------------------------------

const builders = []; // each appends its sections to the page, if the content has something for them
const addSection = (build) => builders.push(build);

const section = (id, title, words) => {
  const element = make("section", { id, "aria-labelledby": id + "-title" }, make("h2", { id: id + "-title", text: title }));
  if (words) element.append(make("p", { class: "quiet", text: words }));
  main.append(element);
  document.getElementById("sections").append(make("li", {}, make("a", { href: "#" + id, text: title })));
  return element;
};

const showPage = () => {
  builders.forEach((build) => build());
  const redrawAll = () => charts.forEach((redraw) => redraw());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  let width = narrow();
  window.addEventListener("resize", () => { if (narrow() !== width) { width = narrow(); redrawAll(); } });
  document.documentElement.dataset.ready = "yes";
};

// Tables and controls ---------------------------------------------------------------------------------------

// `groups` are headings above the columns, each with the number of columns that it spans.
const table = (columns, rows, caption, best = () => false, groups = []) => {
  const head = make("tr", {}, ...columns.map((each) => make("th", { scope: "col", text: each })));
  const above = groups.length ? make("tr", {}, ...groups.map(([title, span]) =>
    (title ? make("th", { scope: "colgroup", colspan: span, text: title }) : make("td", { colspan: span })))) : null;
  const body = rows.map((row, r) => make("tr", {}, ...row.map((cell, c) =>
    make(c === 0 ? "th" : "td", { scope: c === 0 ? "row" : null, text: cell, class: best(r, c) ? "best" : null }))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", { text: caption }), make("thead", {}, above, head), make("tbody", {}, ...body)));
};

const numbers = (columns, rows, caption) =>
  make("details", {}, make("summary", { text: "Show the numbers" }), table(columns, rows, caption));

// A labelled drop-down list; `choose` is called with the index of the chosen option.
const dropdown = (parent, id, label, options, selected, choose) => {
  const select = make("select", { id, on: { change: (event) => choose(Number(event.target.value)) } },
    ...options.map((text, index) => make("option", { value: index, text, selected: index === selected })));
  parent.append(make("p", {}, make("label", { for: id, text: label + " " }), select));
  return select;
};

// Charts of clients -----------------------------------------------------------------------------------------

const MOST_NAMED = 30; // clients whose names fit along an axis

// An axis with a place for each client: their names, or only what the places are where there are too many.
const clientAxis = (names, title, ofMany) => (names.length > MOST_NAMED ? { title: { text: ofMany } }
  : { title: { text: title }, tickmode: "array", tickvals: names.map((_, place) => place), ticktext: names.map((name) => plain(short(name, 14))) });

// Charts ----------------------------------------------------------------------------------------------------

const charts = []; // functions that redraw a chart, after a change of theme or width
const waiting = new Map(); // charts that are not near the window yet: the page opens quickly, however many it has
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    waiting.get(entry.target)();
    waiting.delete(entry.target);
  }
}, { rootMargin: "600px" });
window.addEventListener("beforeprint", () => { for (const draw of waiting.values()) draw(); });

// A chart with a caption, which is also its text for screen readers, and its numbers in a table below. `words`, `draw`
// and `below` are functions; the function returned calls them again, when the chart has to show something else.
const chart = (parent, id, words, draw, below) => {
  const place = make("div", { class: "chart", id, role: "img" }), caption = make("figcaption"), holder = make("div");
  parent.append(make("figure", {}, place, caption, holder));
  let near = false;
  const describe = () => {
    caption.textContent = words();
    place.setAttribute("aria-label", words());
    const open = holder.querySelector("details")?.open; // an open table stays open
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
  waiting.set(place, () => { near = true; redraw(); });
  watcher.observe(place);
  return () => { describe(); redraw(); };
};
