// Comparisons: methods on the same splits and seeds, with intervals and paired differences.

addSection(() => {
  if (!content.comparisons.length) return;
  const element = section("comparisons", "Differences", "Methods on the same splits and seeds: mean ± half-width of its 95 % interval, and the mean "
    + "paired difference to the best method, or to the baseline, with its interval. ≈ marks methods not significantly different from the best.");
  content.comparisons.forEach((each, index) => {
    element.append(make("h3", { text: `${each.name}, over ${each.over}` }));
    let [figure, of] = [each.figures[0], each.metrics[0]];
    if (each.metrics.length > 1) {
      dropdown(element, `comparison-metric-${index}`, "Metric:", each.metrics.map((one) => one.title), 0, (chosen) => { of = each.metrics[chosen]; show(); });
    }
    dropdown(element, `comparison-figure-${index}`, "Round:", each.figures.map((one) => one.title), 0, (chosen) => { figure = each.figures[chosen]; show(); });
    const holder = element.appendChild(make("div"));
    const cell = (method, model) => own(method[model], of.name)[figure.name];
    const sign = (value) => (value > 0 ? "+" : "") + shownValue(value, of);
    const difference = (found) => {
      const mark = found.best ? "best" : found.told === false ? "≈" : "";
      const words = found.difference === null ? "" : `${sign(found.difference)}${plusMinus(found.difference_half, of)}`;
      return `${words} ${mark}`.trim() || "–";
    };
    const show = () => {
      const to = each.to ? `to ${each.to}` : "to the best";
      const rows = each.methods.map((method) => [method.name, ...Object.keys(NAMES).flatMap((model) => {
        const found = cell(method, model);
        return [shownValue(found.mean, of) + plusMinus(found.half, of), difference(found)];
      })]);
      const columns = ["method", ...Object.keys(NAMES).flatMap((model) => [model + unit(of), `${model}, difference ${to}`])];
      const isBest = (r, c) => (c === 1 || c === 3) && cell(each.methods[r], c === 1 ? "G" : "P").best;
      holder.replaceChildren(table(columns, rows, `${each.name}: test ${of.title}, ${figure.title}`, isBest));
    };
    show();
  });
});
