"use strict";
// Place the Bokeh plots on the page, and redraw those with a choice of markers or population.
// `data` comes from page_data in dpmix/report/page_data.py.

const plots = JSON.parse(document.getElementById("plots").textContent);
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function fail(message) {
  byId("failed").textContent = message;
  byId("failed").hidden = false;
}

// Bokeh interprets text between these marks as mathematics; an invisible word joiner prevents it.
const plain = (text) => text.replaceAll("$$", "$\u2060$").replaceAll("\\(", "\\\u2060(").replaceAll("\\[", "\\\u2060[");

async function embed() {
  const documents = {};
  for (const [id, item] of Object.entries(plots)) {
    const views = await Bokeh.embed.embed_item(item, `plot-${id}`);
    documents[id] = views.roots[0].model.document;
  }
  return documents;
}

// ---------------------------------------------------------------------------------------- two markers

const bins = data.bins;
const unpacked = new Map();

// Return the events (logarithmic scale of 255 steps) and the population plus 1 of each bin, first marker horizontal.
async function raster(pair) {
  if (!unpacked.has(pair)) {
    const packed = Uint8Array.from(atob(data.rasters[pair]), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const area = bins * bins;
    const populations = new Uint16Array(area);
    for (let i = 0; i < area; i++) populations[i] = bytes[area + i] + 256 * bytes[2 * area + i];
    unpacked.set(pair, { steps: bytes.subarray(0, area), populations });
  }
  return unpacked.get(pair);
}

function pairOf(a, b) {
  const [low, high] = a < b ? [a, b] : [b, a];
  return low * data.channels.length - (low * (low + 1)) / 2 + (high - low - 1);
}

const eventsOf = (step, full) => Math.round(Math.expm1((step / 255) * full));
const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const colours = data.populations.map((p) => parts(p.colour));
const grey = [90, 90, 90];

function shades(steps, populations, swapped, scale, mode, only) {
  const image = new Uint32Array(bins * bins);
  for (let row = 0; row < bins; row++) {
    for (let column = 0; column < bins; column++) {
      const place = swapped ? row * bins + column : column * bins + row;
      if (steps[place] === 0) { image[row * bins + column] = 0xffffffff; continue; }
      const own = populations[place] - 1;
      const plainly = mode === "density" || (only >= 0 && own !== only);
      const colour = plainly ? (mode === "density" ? [0, 0, 0] : grey) : colours[own % colours.length];
      const dark = Math.min(1, steps[place] / scale);
      const depth = only >= 0 && own !== only ? 0.08 + 0.25 * dark : only >= 0 ? 0.4 + 0.6 * dark : 0.22 + 0.78 * dark;
      const [r, g, b] = colour.map((c) => Math.round(255 - depth * (255 - c)));
      image[row * bins + column] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    }
  }
  return image;
}

function tooltips(steps, populations, swapped, full) {
  const who = new Array(bins * bins), events = new Array(bins * bins);
  for (let row = 0; row < bins; row++) {
    for (let column = 0; column < bins; column++) {
      const place = swapped ? row * bins + column : column * bins + row;
      const count = eventsOf(steps[place], full);
      who[row * bins + column] = steps[place] ? data.names[populations[place] - 1] : "none";
      events[row * bins + column] = (count > 15 ? "about " : "") + count.toLocaleString("en");
    }
  }
  return { who, events };
}

// Return the 90% ellipse of a covariance: its squared radius is a chi-squared quantile with two degrees of freedom.
function ellipse(xx, xy, yy) {
  const middle = (xx + yy) / 2, gap = Math.hypot((xx - yy) / 2, xy);
  const size = (value) => 2 * Math.sqrt(-2 * Math.log(0.1) * Math.max(value, 0));
  return { width: size(middle + gap), height: size(middle - gap), angle: Math.atan2(2 * xy, xx - yy) / 2 };
}

function outlines(across, up, pair, only) {
  const found = { x: [], y: [], width: [], height: [], angle: [], colour: [] };
  const numbers = { x: [], y: [], text: [], colour: [], ink: [] };
  if (!byId("outlines").checked) return { found, numbers };
  data.populations.forEach((population, p) => {
    if (only >= 0 && p !== only) return;
    if (population.means !== null && (only >= 0 || p < data.most_ellipses)) {
      const shape = ellipse(population.variances[across], population.covariances[pair], population.variances[up]);
      found.x.push(population.means[across]);
      found.y.push(population.means[up]);
      for (const name of ["width", "height", "angle"]) found[name].push(shape[name]);
      found.colour.push(population.colour);
    }
    if (population.medians === null) return;
    numbers.x.push(population.medians[across]);
    numbers.y.push(population.medians[up]);
    numbers.text.push(String(p + 1));
    numbers.colour.push(population.colour);
    numbers.ink.push(population.ink);
  });
  return { found, numbers };
}

async function showMarkers(document_) {
  const across = Number(byId("across").value), up = Number(byId("up").value);
  const only = Number(byId("highlight").value);
  const mode = document.querySelector("input[name=colours]:checked").value;
  const pair = pairOf(across, up), swapped = across > up;
  const { steps, populations } = await raster(pair);
  const full = data.full[pair];
  const model = (name) => document_.get_model_by_name(name);
  const figure = model("markers"), source = model("bins");
  const [left, right, bottom, top] = [...data.ranges[across], ...data.ranges[up]];
  const image = source.data.image[0];
  image.set(shades(steps, populations, swapped, data.scale[pair], mode, only));
  const { who, events } = tooltips(steps, populations, swapped, full);
  source.data = {
    image: [image], who: [who], events: [events], x: [left], y: [bottom], dw: [right - left], dh: [top - bottom],
  };
  source.change.emit(); // the image is the same array, so Bokeh may not notice the change
  const { found, numbers } = outlines(across, up, pair, only);
  model("ellipses").data = found;
  model("numbers").data = numbers;
  if (data.explored) {
    const own = only < 0 || only === data.explored.population ? data.explored.values : data.channels.map(() => []);
    model("explored").data = { x: own[across], y: own[up] };
  }
  model("across").axis_label = plain(data.channels[across]);
  model("up").axis_label = plain(data.channels[up]);
  figure.x_range.setv({ start: left, end: right, reset_start: left, reset_end: right });
  figure.y_range.setv({ start: bottom, end: top, reset_start: bottom, reset_end: top });
  byId("plot-markers").setAttribute("data-shown", `${across},${up},${only},${mode}`);
}

function watchMarkers(document_) {
  const show = () => showMarkers(document_).catch((error) => fail(`The markers cannot be drawn: ${error}`));
  let last = data.first.map(String);
  [byId("across").value, byId("up").value] = last;
  const picked = (one, other) => () => {
    if (byId(one).value === byId(other).value) byId(other).value = last[one === "across" ? 0 : 1];
    last = [byId("across").value, byId("up").value];
    show();
  };
  byId("across").addEventListener("change", picked("across", "up"));
  byId("up").addEventListener("change", picked("up", "across"));
  for (const id of ["highlight", "outlines"]) byId(id).addEventListener("change", show);
  for (const radio of document.querySelectorAll("input[name=colours]")) radio.addEventListener("change", show);
  for (const button of document.querySelectorAll("button[data-population]")) {
    button.addEventListener("click", () => {
      byId("highlight").value = button.dataset.population;
      last = data.populations[Number(button.dataset.population)].best.map(String);
      [byId("across").value, byId("up").value] = last;
      show();
      byId("markers").scrollIntoView({ behavior: "smooth" });
    });
  }
  return showMarkers(document_);
}

// ------------------------------------------------------------------------------------------- samples

function showSamples(document_) {
  const p = Number(byId("sampled").value);
  const source = document_.get_model_by_name("samples");
  const { mean, low, high, least } = data.samples;
  const count = mean.length;
  // A range of at least a factor of 4 contains ticks.
  const start = Math.max(least, Math.min(...low.map((row) => row[p]), ...mean.map((row) => row[p])) / 2);
  const end = Math.max(4 * start, Math.min(1, 2 * Math.max(...high.map((row) => row[p]))));
  document_.get_model_by_name("shares").y_range.setv({ start, end, reset_start: start, reset_end: end });
  source.data = {
    ...source.data,
    mean: mean.map((row) => row[p]), low: low.map((row) => row[p]), high: high.map((row) => row[p]),
    colour: new Array(count).fill(data.populations[p].colour),
  };
  byId("plot-samples").setAttribute("data-shown", String(p));
}

// ----------------------------------------------------------------------------------------------- map

function nameEvents(document_) {
  const source = document_.get_model_by_name("events");
  source.data = { ...source.data, who: Array.from(source.data.population, (p) => data.names[p]) };
}

embed()
  .then(async (documents) => {
    if (data.rasters.length) await watchMarkers(documents.markers);
    if (documents.map) nameEvents(documents.map);
    if (documents.samples) {
      byId("sampled").addEventListener("change", () => showSamples(documents.samples));
      showSamples(documents.samples);
    }
    document.documentElement.setAttribute("data-ready", "true");
  })
  .catch((error) => {
    fail(`The figures cannot be drawn by this browser (${error}); they are also in the folder "figures" next to this page.`);
    throw error;
  });
