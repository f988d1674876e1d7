// Interactive figures of the notebooks. plotly.js is loaded only where a page has one; each figure is a script beside
// the page that calls showFigure, so that pages also work when opened from a disk.
(() => {
  const base = document.currentScript.src.replace(/figures\.js.*$/, "");
  const shown = [];

  function colours() {
    const text = getComputedStyle(document.body).color;
    const grid = "rgba(128, 128, 128, 0.3)";
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid };
    return { text, axis };
  }

  function layoutOf(figure) {
    const { text, axis } = colours();
    const layout = { ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    layout.font = { ...layout.font, color: text };
    layout.autosize = true;
    delete layout.width;
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis/.test(name)) layout[name] = { ...axis, ...layout[name] };
    }
    return layout;
  }

  window.showFigure = (file, figure) => {
    const place = document.querySelector(`[data-figure="${file}"]`);
    Plotly.newPlot(place, figure.data, layoutOf(figure), { responsive: true, displayModeBar: false });
    shown.push([place, figure]);
  };

  function load(source) {
    return new Promise((done) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = done;
      document.head.append(script);
    });
  }

  const places = document.querySelectorAll("[data-figure]");
  if (places.length) {
    load(base + "plotly.min.js").then(() => places.forEach((place) => load(place.dataset.figure)));
    new MutationObserver(() => shown.forEach(([place, figure]) => Plotly.relayout(place, layoutOf(figure)))).observe(
      document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  }
})();
