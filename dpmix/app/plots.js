"use strict";
// The events in pairs of channels, coloured by population, as density or points, and the tree of populations.

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plain = (text) => text.replaceAll("$$", "$\u2060$").replaceAll("\\(", "\\\u2060(").replaceAll("\\[", "\\\u2060[");

async function embed() {
  const figures = JSON.parse(byId("figures").textContent);
  for (const [name, item] of Object.entries(figures)) {
    views[name] = (await Bokeh.embed.embed_item(item, `plot-${name}`)).roots[0];
    models[name] = views[name].model;
  }
  for (let k = 0; k < plots; k++) {
    const figure = models[`pair${k}`];
    figure.on_event("selectiongeometry", (event) => { if (event.final) select(k, event.geometry); });
    figure.on_event("reset", showAll);
    figure.on_event("rangesupdate", () => redrawMoved(k));
    for (const name of ["inner_width", "inner_height"]) figure.properties[name].change.connect(() => redrawMoved(k));
    for (const id of [`across${k}`, `up${k}`]) byId(id).onchange = () => { unselect(); draw(); };
  }
}

function theme() {
  const ink = styled("--ink"), line = styled("--line");
  for (const plot of Object.values(models)) {
    plot.setv({ background_fill_color: null, border_fill_color: null });
    for (const place of ["below", "left"]) for (const axis of plot[place] ?? [])
      axis.setv?.({ major_label_text_color: ink, axis_label_text_color: ink, axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: line });
  }
  const names = models.tree.renderers.find((one) => one.name === "names");
  names.glyph.text_color = { value: ink };
  models.tree.document.get_model_by_name("cut").line_color = ink;
}

const column = (d) => state.values.subarray(d * state.opened.events, (d + 1) * state.opened.events);

const axesOf = (k) => [`across${k}`, `up${k}`].map((id) => Number(byId(id).value));

// Where the plots draw events beyond an axis: in its last bin.
function limitsOf(d) {
  const [low, high] = state.opened.ranges[d], half = (high - low) / (2 * bins);
  return [low + half, high - half];
}

// Mark the events inside a box or a lasso of one plot; all plots then show them.
function select(k, geometry) {
  const selection = { axes: axesOf(k), geometry }, chosen = inside(selection, column);
  const some = isPoints() || chosen.includes(1); // of the points, some may be inside although none of the fewer events is
  Object.assign(state, { selection: some ? selection : null, chosen: some ? chosen : null, only: -1 });
  showRows();
  draw();
}

function unselect() {
  Object.assign(state, { selection: null, chosen: null });
}

function showAll() {
  unselect();
  state.only = -1;
  showRows();
  draw();
}

// Return 1 for events inside the selection, where the plots draw them, else 0; `values` gives those of a channel.
function inside({ axes, geometry }, values) {
  const [x, y] = axes.map((d) => { const [low, high] = limitsOf(d); return values(d).map((value) => Math.max(low, Math.min(high, value))); });
  const found = new Uint8Array(x.length);
  if (geometry.type === "rect") {
    const { x0, x1, y0, y1 } = geometry;
    for (let i = 0; i < x.length; i++) found[i] = x[i] >= x0 && x[i] <= x1 && y[i] >= y0 && y[i] <= y1;
  } else {
    const xs = geometry.x, ys = geometry.y;
    for (let i = 0; i < x.length; i++) {
      let odd = 0;
      for (let a = 0, b = xs.length - 1; a < xs.length; b = a++)
        if (ys[a] > y[i] !== ys[b] > y[i] && x[i] < ((xs[b] - xs[a]) * (y[i] - ys[a])) / (ys[b] - ys[a]) + xs[a]) odd ^= 1;
      found[i] = odd;
    }
  }
  return found;
}

// The marked events of the densities (`state`) or of the points (`points`); null: all.
function marked(events) {
  if (events.chosen) return events.chosen;
  return state.only < 0 ? null : events.population.map((p) => p === state.only);
}

function draw() {
  if (!state.view) return;
  showRareButtons();
  showWhich();
  if (isPoints() && !areCurrent()) return followPoints().catch(fail);
  const events = isPoints() ? points : state, mark = marked(events);
  if (isPoints()) groupPoints(mark);
  for (let k = 0; k < plots; k++) drawPair(k, events, mark);
  byId("selection").textContent = mark ? summary(events, mark) : "Select events with box or lasso in any plot, or a population by its number: all plots show them. Escape shows all.";
}

function summary({ population }, mark) {
  const counts = new Array(state.view.populations.length).fill(0);
  let all = 0;
  for (let i = 0; i < mark.length; i++) if (mark[i]) { counts[population[i]] += 1; all += 1; }
  const parts = counts.map((n, p) => [n, p]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 4);
  const share = (n, of) => `${short((100 * n) / of, 3)}%`;
  return `${all.toLocaleString("en")} of ${mark.length.toLocaleString("en")} events (${share(all, mark.length)})${all ? ": " : ""}` +
    (all ? parts.map(([n, p]) => `${titleOf(p)} ${share(n, all)}`).join("; ") : "");
}

function showTicks(axis, channel) {
  const { places, texts, minor } = state.opened.ticks[channel];
  axis.major_label_overrides = new Map(places.map((place, k) => [place, texts[k]]));
  axis.ticker.setv({ ticks: places, minor_ticks: minor });
  axis.axis_label = plain(state.opened.channels[channel]);
}

function drawPair(k, events, mark) {
  const [across, up] = axesOf(k);
  const figure = models[`pair${k}`], source = figure.document.get_model_by_name(`image${k}`);
  const [left, right] = state.opened.ranges[across], [bottom, top] = state.opened.ranges[up];
  const pair = `${across},${up}`;
  if (figure.tags[0] !== pair) {
    figure.tags = [pair];
    figure.x_range.setv({ start: left, end: right, reset_start: left, reset_end: right });
    figure.y_range.setv({ start: bottom, end: top, reset_start: bottom, reset_end: top });
    showTicks(figure.below[0], across);
    showTicks(figure.left[0], up);
  }
  const { pixels, shape, ...place } = events === points ? pointsImage(k)
    : { pixels: shades(column(across), column(up), left, right, bottom, top, mark), shape: [bins, bins], x: left, y: bottom, dw: right - left, dh: top - bottom };
  const image = new source.data.image[0].constructor(pixels.buffer, shape); // an array of Bokeh, with a shape
  source.data = { image: [image], ...Object.fromEntries(Object.entries(place).map(([name, value]) => [name, [value]])) };
}

// A bin has the colour of most of its events, paler for fewer; events that are not marked are grey.
function shades(x, y, left, right, bottom, top, mark) {
  const area = bins * bins, many = state.view.populations.length;
  const counts = new Uint32Array(area), other = new Uint32Array(area), votes = new Uint32Array(area * many);
  for (let i = 0; i < x.length; i++) {
    const a = Math.floor((bins * (x[i] - left)) / (right - left)), b = Math.floor((bins * (y[i] - bottom)) / (top - bottom));
    const place = Math.max(0, Math.min(bins - 1, b)) * bins + Math.max(0, Math.min(bins - 1, a));
    if (mark && !mark[i]) { other[place] += 1; continue; }
    counts[place] += 1;
    votes[place * many + state.population[i]] += 1;
  }
  const colours = state.view.populations.map((p) => rgb(p.colour));
  const paper = rgb(styled("--paper")), image = new Uint32Array(area);
  const few = mark && mark.reduce((sum, one) => sum + one, 0) < 1000; // each of them is to be seen
  const full = Math.log1p(Math.max(4, highest(counts))), fullOther = Math.log1p(Math.max(4, highest(other)));
  const mixed = (colour, depth) => {
    const [r, g, b] = colour.map((c, i) => Math.round(paper[i] + depth * (c - paper[i])));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  };
  for (let place = 0; place < area; place++) {
    if (counts[place]) {
      let best = 0;
      for (let p = 1; p < many; p++) if (votes[place * many + p] > votes[place * many + best]) best = p;
      image[place] = mixed(colours[best], few ? 1 : 0.3 + 0.7 * Math.min(1, Math.log1p(counts[place]) / full));
    } else if (other[place]) {
      image[place] = mixed([128, 128, 128], 0.08 + 0.3 * Math.min(1, Math.log1p(other[place]) / fullOther));
    }
  }
  return image;
}

// The 99.5% quantile of the filled bins: a few very full ones do not make the others pale.
function highest(counts) {
  const filled = counts.filter((n) => n > 0).sort();
  return filled.length ? filled[Math.floor(0.995 * (filled.length - 1))] : 1;
}

function drawTree() {
  if (!state.view) return;
  const { tree, populations, level } = state.view, { floor, top } = tree;
  const own = (p) => (p >= 0 ? populations[p].colour : styled("--ink"));
  const figure = models.tree, find = (name) => figure.document.get_model_by_name(name);
  figure.height = 70 + 20 * tree.leaves.length;
  figure.y_range.setv({ start: tree.leaves.length - 0.4, end: -0.6 });
  figure.x_range.setv({ start: top, end: floor * (floor / top) }); // the right half is for names
  figure.below[0].bounds = [floor, top];
  figure.below[0].ticker.ticks = tree.ticks;
  find("brackets").data = { x: tree.levels, y: tree.positions, colour: tree.populations.map(own) };
  const named = new Set();
  const text = tree.leaves.map((leaf) => {
    if (leaf.length > 1) return `${leaf.length} populations`;
    if (named.has(leaf[0])) return String(leaf[0] + 1);
    named.add(leaf[0]);
    const full = titleOf(leaf[0]);
    return plain(full.length > 36 ? `${full.slice(0, 35)}…` : full);
  });
  find("leaves").data = {
    x: tree.leaves.map(() => floor), y: tree.leaves.map((_, at) => at), text,
    colour: tree.leaves.map((leaf) => own(leaf.length > 1 ? -1 : leaf[0])),
  };
  find("cut").location = level;
}
