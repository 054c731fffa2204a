"use strict";
// Channels of the ticked files: histograms, densities, transforms and compensation. The server computes all of them
// (dpmix/app/channels.py); the settings go into the config of the run.

const methods = { logicle: ["t", "w", "m", "a"], arcsinh: ["cofactor"], widen: ["cofactor"], log: [], linear: [] };
const choice = { files: [], channels: null, notes: [], suggested: "", compensation: "", matrix: null, detectors: [], pair: null, grid: null };
const tickedFiles = () => [...document.querySelectorAll(".file:checked")].map((box) => box.value);
const copied = (value) => JSON.parse(JSON.stringify(value));
const rounded = (x) => x.toLocaleString("en", { maximumSignificantDigits: 3 });
const short = (x, digits = 6) => String(Number(x.toPrecision(digits)));

// The settings as the server takes them; none for files whose channels were not opened.
function settings() {
  if (!choice.channels) return {};
  const usable = choice.channels.filter((one) => one.present);
  const data = {
    channels: usable.filter((one) => one.used).map((one) => one.name),
    compensation: choice.compensation === "edited" ? "auto" : choice.compensation,
    transform: Object.fromEntries(usable.filter((one) => one.name !== "default").map((one) => [one.name, one.now])),
  };
  return choice.compensation === "edited" ? { data, matrix: choice.matrix } : { data };
}

async function openChannels() {
  const files = tickedFiles();
  const found = await ask("channels", { files }, "reading the events …");
  Object.assign(choice, {
    files, notes: found.notes, suggested: found.compensation, compensation: found.compensation, detectors: found.detectors,
    matrix: copied(found.matrix), own: found.matrix, pair: null, grid: null,
    channels: found.channels.map((one) => ({ ...one, used: one.taken, now: copied(one.transform) })),
  });
  byId("channels").hidden = false;
  byId("channels").open = true;
  showChannels();
  showMatrix();
  await refresh();
  byId("channels").querySelector("summary").focus();
}

function closeChannels() {
  choice.channels = null;
  byId("channels").hidden = true;
}

function showChannels() {
  byId("channel-files").textContent = choice.files.join(", ");
  byId("channel-notes").replaceChildren(...choice.notes.map((text) => element("li", { textContent: text })));
  byId("channel-rows").replaceChildren(...choice.channels.map((one, at) => {
    const tick = element("input", { type: "checkbox", className: "use", checked: one.used, disabled: !one.present, ariaLabel: `use ${one.name}`, onchange: () => { one.used = tick.checked; changed(); } });
    const row = element("tr", {}, element("td", {}, tick),
      element("td", {}, element("strong", { textContent: one.name }), element("div", { className: "detector", textContent: one.marker && one.name !== one.detector ? one.detector : "" })),
      element("td", {}, element("div", { className: "transform" })), element("td", { className: "before" }), element("td", { className: "after" }),
      element("td", { className: "suggested" }));
    row.id = `channel${at}`;
    return row;
  }));
  choice.channels.forEach((one, at) => showTransform(one, at));
  const names = choice.channels.filter((one) => one.present).map((one) => one.name);
  const used = choice.channels.filter((one) => one.used).map((one) => one.name);
  choice.pair ??= [used[0] ?? names[0], used[1] ?? names[0]];
  ["channel-across", "channel-up"].forEach((id, axis) => {
    byId(id).replaceChildren(...names.map((name) => new Option(name, name, false, name === choice.pair[axis])));
  });
  byId("compensation").replaceChildren(...[["auto", "of the files"], ["none", "none"], ...(choice.detectors.length ? [["edited", "edited below"]] : [])]
    .map(([value, text]) => new Option(text, value, false, value === choice.compensation)));
}

// Method and parameters of one channel, and what dpmix init suggests.
function showTransform(one, at) {
  const row = byId(`channel${at}`), place = row.querySelector(".transform"), suggested = row.querySelector(".suggested");
  suggested.replaceChildren(element("div", { textContent: one.why ? `leave out: ${one.why}` : "use" }));
  if (!one.present) return;
  const written = (of) => [of.method, ...methods[of.method].map((name) => `${name} ${short(of[name])}`)].join(" ");
  suggested.append(element("div", { textContent: written(one.transform) }));
  const back = element("button", { textContent: "Suggested", ariaLabel: `suggested settings of ${one.name}`, onclick: () => {
    one.used = one.taken;
    one.now = copied(one.transform);
    row.querySelector(".use").checked = one.used;
    showTransform(one, at);
    changed();
  } });
  suggested.append(back);
  const select = element("select", { ariaLabel: `transform of ${one.name}`, onchange: () => {
    one.now = select.value === one.transform.method ? copied(one.transform) : { method: select.value };
    showTransform(one, at);
    byId(`channel${at}`).querySelector("select").focus();
    changed();
  } }, ...Object.keys(methods).map((name) => new Option(name, name, false, name === one.now.method)));
  place.replaceChildren(select, ...methods[one.now.method].map((name) => {
    const input = element("input", { type: "number", step: "any", className: "parameter", value: one.now[name] === undefined ? "" : short(one.now[name]), ariaLabel: `${name} of ${one.name}`, onchange: () => {
      if (input.value === "") delete one.now[name];
      else one.now[name] = Number(input.value);
      changed();
    } });
    input.dataset.parameter = name;
    return element("label", {}, `${name} `, input);
  }));
}

// ---------------------------------------------------------------------------------------- plots

const svgElement = (name, given) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  return made;
};

function bars(histogram, title, problem = "") {
  const n = histogram.heights.length;
  if (!n) return [element("span", { className: "problem", textContent: "no values" })];
  const svg = svgElement("svg", { viewBox: `0 0 ${n} 1`, preserveAspectRatio: "none", class: "bars", role: "img", "aria-label": `${title}, from ${short(histogram.low)} to ${short(histogram.high)}` });
  const outline = histogram.heights.map((height, at) => `V${1 - height}H${at + 1}`).join("");
  svg.append(svgElement("path", { d: `M0,1${outline}V1Z`, fill: "currentColor" }));
  const ends = element("div", { className: "ends" }, element("span", { textContent: rounded(histogram.low) }), element("span", { textContent: rounded(histogram.high) }));
  return [svg, ends, ...(problem ? [element("div", { className: "problem", textContent: problem })] : [])];
}

function paintDensity(canvas, density, pixels) {
  const paper = rgb(styled("--paper")), ink = rgb(styled("--mark")), depth = atob(density);
  canvas.width = canvas.height = pixels;
  const image = new ImageData(pixels, pixels);
  for (let i = 0; i < depth.length; i++) {
    const level = depth.charCodeAt(i) / 255, strength = level ? 0.15 + 0.85 * level : 0;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = paper[c] + strength * (ink[c] - paper[c]);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

let painted = null, grid = null;
function paint() {
  if (!painted) return;
  for (const name of ["before", "after"]) paintDensity(byId(`density-${name}`), painted[name], painted.pixels);
  const [x, y] = painted.ranges.map((ends) => ends.map((end) => end.toPrecision(3)).join(" to "));
  byId("density-axes").textContent = `Across: ${choice.pair[0]}, ${x}. Up: ${choice.pair[1]}, ${y}. Both on the scale after the transform.`;
  for (const canvas of document.querySelectorAll("#grid canvas")) paintDensity(canvas, grid.densities[canvas.dataset.up - 1][canvas.dataset.across], grid.pixels);
}

// Row and column of a channel meet in its name; below are the densities with the channels of the other columns.
function showGrid(found) {
  grid = found;
  const names = found.channels, focus = document.activeElement?.dataset?.pair;
  byId("grid").style.gridTemplateColumns = `repeat(${names.length}, minmax(0, 1fr))`;
  const cells = names.flatMap((name, up) => names.map((other, across) => {
    if (across > up) return element("div");
    if (across === up) return element("div", { className: "own" }, element("strong", { textContent: name }), ...bars(found.histograms[up], `${name} after its transform`).slice(0, 1));
    const canvas = element("canvas");
    Object.assign(canvas.dataset, { up, across });
    const button = element("button", { type: "button", className: "pair", title: `${other} across, ${name} up`, ariaLabel: `show ${other} across, ${name} up`, onclick: () => showPair([other, name]) }, canvas);
    button.dataset.pair = `${across} ${up}`;
    return button;
  }));
  byId("grid").replaceChildren(...cells);
  showGridChannels(names);
  byId("grid-note").textContent = `${found.events.toLocaleString("en")} events, on the scales after the transforms, of ${choice.grid ? "the channels chosen" : `the first ${names.length} channels in use`}. Press a density to see its two channels larger.`;
  if (focus) document.querySelector(`[data-pair="${focus}"]`)?.focus();
}

// Any channels, in their order, up to a number that can be drawn.
function showGridChannels(names) {
  const most = Number(byId("grid").dataset.most), focus = document.activeElement?.dataset?.grid;
  byId("grid-channels").replaceChildren(...choice.channels.filter((one) => one.present).map((one) => {
    const tick = element("input", { type: "checkbox", checked: names.includes(one.name), disabled: names.length >= most && !names.includes(one.name), ariaLabel: `${one.name} in the grid` });
    tick.dataset.grid = one.name;
    tick.onchange = () => {
      choice.grid = [...byId("grid-channels").querySelectorAll("input:checked")].map((box) => box.dataset.grid);
      changed();
    };
    return element("label", {}, tick, ` ${one.name}`);
  }), element("button", { type: "button", textContent: "First channels in use", disabled: !choice.grid, onclick: () => { choice.grid = null; changed(); } }));
  if (focus) byId("grid-channels").querySelector(`[data-grid="${CSS.escape(focus)}"]`)?.focus();
}

// Settings may change while the server computes: the last ones are always asked for.
let computing = false, outdated = false;
async function refresh() {
  outdated = true;
  if (computing) return;
  computing = true;
  try {
    while (outdated && choice.channels) {
      outdated = false;
      const given = { files: choice.files, ...settings() }, shown = choice.channels;
      const seen = await ask("look", { ...given, name: byId("fit-name").value || "run" }, "computing histograms …");
      const pair = await ask("pair", { ...given, across: choice.pair[0], up: choice.pair[1] });
      const pairs = await ask("grid", { ...given, ...(choice.grid ? { shown: choice.grid } : {}) });
      if (shown !== choice.channels) continue;
      showLook(seen);
      showGrid(pairs);
      painted = pair;
      paint();
    }
    document.documentElement.dataset.looked = String(Number(document.documentElement.dataset.looked ?? 0) + 1);
  } finally { computing = false; }
}

const changed = () => guarded(refresh);

function showLook(seen) {
  const found = new Map(seen.channels.map((one) => [one.name, one]));
  choice.channels.forEach((one, at) => {
    const row = byId(`channel${at}`), own = found.get(one.name);
    if (!own) return;
    row.querySelector(".before").replaceChildren(...bars(own.before, `${one.name} before its transform`));
    row.querySelector(".after").replaceChildren(...bars(own.after, `${one.name} after its transform`, own.problem));
    if (one.now.method !== own.transform.method) return;
    for (const input of row.querySelectorAll(".parameter")) { // those that were not given
      const name = input.dataset.parameter;
      if (one.now[name] !== undefined) continue;
      one.now[name] = own.transform[name];
      input.value = short(own.transform[name]);
    }
  });
  byId("channel-events").textContent = `${seen.events.toLocaleString("en")} events`;
  byId("channel-yaml").textContent = seen.yaml;
}

// ---------------------------------------------------------------------------------------- compensation

const nameOf = (detector) => (choice.channels.find((one) => one.detector === detector) ?? choice.channels.find((one) => one.marker === detector))?.name;

function showMatrix() {
  byId("matrix-part").hidden = !choice.detectors.length;
  byId("matrix-head").replaceChildren(element("th", { textContent: "from, to" }), ...choice.detectors.map((name) => element("th", { textContent: nameOf(name) ?? name, title: name })));
  byId("matrix").replaceChildren(...choice.matrix.map((row, i) => element("tr", {}, element("th", { scope: "row", textContent: nameOf(choice.detectors[i]) ?? choice.detectors[i], title: choice.detectors[i] }),
    ...row.map((value, j) => {
      const label = `share of ${choice.detectors[i]} in ${choice.detectors[j]}`;
      const input = element("input", { type: "number", step: "0.005", className: "cell", value: Number(value.toFixed(4)), ariaLabel: label, disabled: i === j });
      input.onfocus = () => showPair([nameOf(choice.detectors[i]), nameOf(choice.detectors[j])]);
      input.oninput = () => {
        if (input.value === "") return;
        choice.matrix[i][j] = Number(input.value);
        choice.compensation = byId("compensation").value = "edited";
        changed();
      };
      return element("td", {}, input);
    }))));
}

function showPair(pair) {
  if (!pair[0] || !pair[1] || pair.join() === choice.pair.join()) return;
  choice.pair = pair;
  [byId("channel-across").value, byId("channel-up").value] = pair;
  changed();
}

document.addEventListener("DOMContentLoaded", () => {
  byId("choose").onclick = () => guarded(openChannels);
  byId("files").addEventListener("change", closeChannels);
  byId("fit-name").addEventListener("change", () => { if (choice.channels) changed(); });
  for (const [axis, id] of ["channel-across", "channel-up"].entries())
    byId(id).onchange = () => { choice.pair[axis] = byId(id).value; changed(); };
  byId("compensation").onchange = () => { choice.compensation = byId("compensation").value; changed(); };
  byId("matrix-back").onclick = () => {
    choice.matrix = copied(choice.own);
    choice.compensation = byId("compensation").value = choice.suggested;
    showMatrix();
    changed();
  };
  byId("theme").addEventListener("change", paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
});
