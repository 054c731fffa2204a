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
    const packed = bytesOf(data.rasters[pair]);
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
const grey = [128, 128, 128];

function shades(steps, populations, swapped, scale, mode, only) {
  const image = new Uint32Array(bins * bins); // 0 is transparent
  const ink = isDark() ? [235, 235, 235] : [0, 0, 0];
  for (let row = 0; row < bins; row++) {
    for (let column = 0; column < bins; column++) {
      const place = swapped ? row * bins + column : column * bins + row;
      if (steps[place] === 0) continue;
      const own = populations[place] - 1;
      const others = only >= 0 && own !== only;
      const [r, g, b] = others ? grey : mode === "density" ? ink : colours[own % colours.length];
      const dark = Math.min(1, steps[place] / scale);
      const depth = others ? 0.08 + 0.25 * dark : only >= 0 ? 0.4 + 0.6 * dark : 0.22 + 0.78 * dark;
      image[row * bins + column] = ((Math.round(255 * depth) << 24) | (b << 16) | (g << 8) | r) >>> 0;
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

// Return the share of each population in its own colour, and the rings of its outline in a pair of channels, as shares of the two ranges.
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
function ringsOf(pair, swapped) {
  const bytes = bytesOf(data.outlines[pair]), found = [];
  for (let at = 0; at < bytes.length;) {
    const rings = { visible: bytes[at++] / 255, all: [] };
    for (let ring = bytes[at++]; ring > 0; ring--) {
      const many = bytes[at++], points = [];
      for (let k = 0; k < many; k++, at += 2) points.push(swapped ? [bytes[at + 1] / 255, bytes[at] / 255] : [bytes[at] / 255, bytes[at + 1] / 255]);
      rings.all.push([...points, points[0]]);
    }
    found.push(rings);
  }
  return found;
}

function outlines(across, up, pair, only) {
  const found = { x: [], y: [], colour: [] };
  const numbers = { x: [], y: [], text: [], colour: [], ink: [] };
  if (!byId("outlines").checked) return { found, numbers };
  const [left, right, bottom, top] = [...data.ranges[across], ...data.ranges[up]];
  const rings = ringsOf(pair, across > up);
  data.populations.forEach((population, p) => {
    if (only >= 0 ? p !== only : (rings[p]?.visible ?? 0) < data.apart) return;
    for (const ring of rings[p]?.all ?? []) {
      found.x.push(ring.map(([x]) => left + x * (right - left)));
      found.y.push(ring.map(([, y]) => bottom + y * (top - bottom)));
      found.colour.push(population.colour);
    }
    if (population.medians === null) return;
    numbers.x.push(population.medians[across]);
    numbers.y.push(population.medians[up]);
    numbers.text.push(String(population.number));
    numbers.colour.push(population.colour);
    numbers.ink.push(population.ink);
  });
  return { found, numbers };
}

function showTicks(axis, channel) {
  const { places, texts, minor } = data.ticks[channel];
  axis.major_label_overrides = new Map(places.map((place, k) => [place, texts[k]]));
  axis.ticker.setv({ ticks: places, minor_ticks: minor });
  axis.axis_label = plain(data.channels[channel]);
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
  model("outlines").data = found;
  model("numbers").data = numbers;
  if (data.explored) {
    const own = only < 0 || only === data.explored.population ? data.explored.values : data.channels.map(() => []);
    model("explored").data = { x: own[across], y: own[up] };
  }
  showTicks(model("across"), across);
  showTicks(model("up"), up);
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
  redraws.push(show);
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
  const mapper = document_.get_model_by_name("colours"), palette = [...mapper.palette];
  lookers.push(() => { mapper.palette = palette.map((own, p) => (chosen < 0 || p === chosen ? own : `${own}14`)); });
}

// Draw the map in the values of a marker: grey, and over it the colour of marks, the more opaque the higher the value.
function watchMapMarker(document_) {
  const canvas = byId("map-marker"), [left, bottom, side] = data.map.window, size = canvas.width;
  const { x, y, population } = document_.get_model_by_name("events").data, pen = canvas.getContext("2d");
  const width = Math.max(2, size * data.map.point), across = (value, from) => (size * (value - from)) / side - width / 2;
  const draw = () => {
    const style = getComputedStyle(document.documentElement), channel = Number(byId("map-channel").value), steps = bytesOf(data.map.values[channel]);
    pen.clearRect(0, 0, size, size);
    for (const [colour, opacity] of [["--line", () => 1], ["--mark", (k) => steps[k] / 255]]) {
      pen.fillStyle = style.getPropertyValue(colour).trim();
      for (let k = 0; k < steps.length; k++) {
        pen.globalAlpha = opacity(k) * (chosen < 0 || population[k] === chosen ? 1 : 0.08);
        pen.fillRect(across(x[k], left), size - width - across(y[k], bottom), width, width);
      }
    }
    canvas.setAttribute("data-shown", `${channel},${chosen}`);
  };
  byId("map-channel").value = String(data.first[0]);
  byId("map-channel").addEventListener("change", draw);
  redraws.push(draw);
  lookers.push(draw);
  draw();
}

// ------------------------------------------------------------------------- one population, one marker

let chosen = -1; // the population shown alone
const lookers = []; // what follows this choice

function choose(population) {
  chosen = population === chosen ? -1 : population;
  document.documentElement.toggleAttribute("data-one", chosen >= 0);
  for (const panels of document.querySelectorAll(".panels")) panels.classList.toggle("one", chosen >= 0);
  for (const part of document.querySelectorAll(".panels [data-of]")) part.classList.toggle("chosen", Number(part.dataset.of) === chosen);
  for (const entry of document.querySelectorAll("[data-highlight]")) entry.setAttribute("aria-pressed", String(Number(entry.dataset.highlight) === chosen));
  showHistograms();
  lookers.forEach((look) => look());
}

// Draw one histogram above the other, overlapping, the largest population on top.
function showHistograms() {
  const place = byId("plot-histograms");
  if (!place) return;
  const channel = Number(byId("marker").value), bytes = bytesOf(data.histograms[channel]);
  const many = bytes.length / bins, row = 22, left = 270, width = 560, high = 2.2 * row;
  const base = high + row * (many - 1) + 6, [low, top] = data.ranges[channel];
  const parts = [];
  for (let p = 0; p < many; p++) {
    const foot = high + row * p, { colour } = data.populations[p];
    const at = (k) => `${(left + (width * (k + 0.5)) / bins).toFixed(1)} ${(foot - (high * bytes[p * bins + k]) / 255).toFixed(1)}`;
    const line = Array.from({ length: bins }, (_, k) => at(k)).join("L");
    const faint = chosen >= 0 && chosen !== p ? ' class="faint"' : "";
    parts.push(`<g${faint} style="--own:${colour}"><path d="M${left} ${foot}L${line}L${left + width} ${foot}Z"/></g>`);
  }
  parts.push(...data.names.slice(0, many).map((_, p) => `<text x="${left - 8}" y="${high + row * p - 4}" text-anchor="end"></text>`));
  const { places, texts, minor } = data.ticks[channel], across = (value) => left + (width * (value - low)) / (top - low);
  const marks = [...places.map((x) => [x, 6]), ...minor.map((x) => [x, 3])].map(([x, size]) => `M${across(x).toFixed(1)} ${base}v${size}`);
  parts.push(`<path class="axes" style="fill:none;stroke:var(--dim)" d="M${left} ${base}h${width}${marks.join("")}"/>`);
  parts.push(...places.map((x) => `<text x="${across(x).toFixed(1)}" y="${base + 20}" text-anchor="middle"></text>`));
  place.innerHTML = `<svg viewBox="0 0 ${left + width + 10} ${base + 26}">${parts.join("")}</svg>`;
  const short = (text) => (text.length > 38 ? `${text.slice(0, 37)}…` : text);
  const labels = [...data.names.slice(0, many).map(short), ...texts];
  place.querySelectorAll("text").forEach((text, k) => { text.textContent = labels[k]; });
  place.setAttribute("data-shown", `${channel},${chosen}`);
}

// -------------------------------------------------------------------------------------------- colours

const redraws = []; // what depends on the colours of the page
const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function theme(documents) {
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const ink = colour("--ink"), line = colour("--dim");
  const wanted = {
    major_label_text_color: ink, axis_label_text_color: ink, title_text_color: ink, axis_line_color: line,
    major_tick_line_color: line, minor_tick_line_color: line, text_color: ink,
  };
  const has = (model, name) => model.properties?.[name] && model[name] !== null; // null: not drawn
  const set = (model) => model?.setv?.(Object.fromEntries(Object.entries(wanted).filter(([name]) => has(model, name))));
  for (const { roots } of Object.values(documents).map((one) => ({ roots: one.roots() })))
    for (const plot of roots.flatMap((root) => root.children ?? [root]))
      for (const model of [...plot.below, ...plot.left, ...plot.right, ...plot.above, plot.title]) set(model);
}

function watchTheme(documents) {
  const apply = () => {
    document.documentElement.dataset.theme = byId("theme").value;
    theme(documents);
    redraws.forEach((redraw) => redraw());
  };
  byId("theme").addEventListener("change", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  theme(documents);
}

embed()
  .then(async (documents) => {
    watchTheme(documents);
    for (const entry of document.querySelectorAll("[data-highlight]")) entry.addEventListener("click", () => choose(Number(entry.dataset.highlight)));
    if (data.rasters.length) {
      byId("marker").value = String(data.first[0]);
      byId("marker").addEventListener("change", showHistograms);
      showHistograms();
      await watchMarkers(documents.markers);
    }
    if (documents.map) nameEvents(documents.map);
    if (data.map) watchMapMarker(documents.map);
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
