"use strict";
// The page of dpmix app. The server computes populations (dpmix/app/live.py); this script shows them, draws the
// densities of the events, and sends what is decided.

const byId = (id) => document.getElementById(id);
const bins = 128, plots = 4;
const palette = JSON.parse(byId("palette").textContent);
const state = { run: "", opened: null, view: null, values: null, population: null, chosen: null, only: -1, redo: [] };
let models = {};

// ---------------------------------------------------------------------------------------- server

let waiting = 0;
const ask = (name, given = {}, text = "working …") => post(`do/${name}`, JSON.stringify(given), text);

async function post(path, body, text) {
  waiting += 1;
  byId("busy").textContent = text;
  const shown = setTimeout(() => { byId("busy").hidden = false; }, 150);
  try {
    const answer = await fetch(path, { method: "POST", body });
    const { result } = await answer.json();
    if (answer.ok) return result;
    const problem = new Error(result.error);
    problem.stale = answer.status === 409;
    throw problem;
  } catch (error) {
    if (error instanceof TypeError || error instanceof SyntaxError)
      throw new Error("the server does not answer; start dpmix app again and open its new address: all decisions are kept");
    throw error;
  } finally {
    clearTimeout(shown);
    waiting -= 1;
    if (!waiting) byId("busy").hidden = true;
  }
}

function fail(error) {
  byId("failed").textContent = error ? String(error.message ?? error) : "";
  byId("failed").hidden = !error;
}

async function guarded(work) {
  fail(null);
  try {
    await work();
  } catch (error) {
    if (error.stale) show(await ask("view", { run: state.run }));
    else if (state.view) show(state.view); // put controls back
    fail(error);
  }
}

const send = (name, more) => ask(name, { run: state.run, revision: state.view.revision, ...more });
let line = Promise.resolve(); // actions one after another: each knows the revision that the one before gave
const decide = (action) => (line = line.then(() => guarded(async () => {
  show(await send("act", { action }));
  state.redo = [];
  showButtons();
})));
const undo = () => (line = line.then(() => guarded(async () => {
  const view = await send("undo");
  state.redo.push(view.undone);
  show(view);
})));
const redo = () => (line = line.then(() => guarded(async () => {
  if (!state.redo.length) return;
  const view = await send("act", { action: state.redo.at(-1) });
  state.redo.pop();
  show(view);
})));

// While the slider moves: only the latest position is asked for, and nothing is stored.
let wanted = null, previewing = false;
async function preview(populations) {
  wanted = populations;
  if (previewing) return;
  previewing = true;
  try {
    while (wanted !== null) {
      const action = { do: "cut", populations: wanted };
      wanted = null;
      const view = await ask("preview", { run: state.run, action });
      show({ ...view, revision: state.view.revision, actions: state.view.actions }, true);
    }
  } catch (error) { fail(error); } finally { previewing = false; }
}

// ---------------------------------------------------------------------------------------- populations

function show(view, passing = false) {
  state.view = view;
  const packed = atob(view.of_events);
  state.population = new Uint16Array(Uint8Array.from(packed, (c) => c.charCodeAt(0)).buffer);
  if (state.only >= view.populations.length) state.only = -1;
  byId("number").value = view.populations.length;
  if (!passing) byId("cut").value = view.populations.length;
  byId("cut").setAttribute("aria-valuetext", `${view.populations.length} populations`);
  byId("why").textContent = `${view.populations.length} populations at level ${view.level.toPrecision(3)}: ${view.why}`;
  byId("command").textContent = view.command;
  showRows();
  showButtons();
  drawTree();
  draw();
  document.documentElement.setAttribute("data-shown", view.revision);
  if (!passing) for (const follow of [showGates, showProfiles]) follow().catch(fail);
}

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const titleOf = (p) => { const own = state.view.populations[p]; return `${p + 1} ${own.name || own.phenotype}`; };

function showRows() {
  const ticked = new Set(tickedRows().map((p) => p.key)), focus = document.activeElement?.dataset?.key;
  const most = Math.max(...state.view.populations.map((p) => (p.ends ? p.ends[1] : p.proportion)));
  byId("rows").replaceChildren(...state.view.populations.map((own, p) => {
    const key = own.modes.join(" ");
    const tick = element("input", { type: "checkbox", className: "tick", checked: ticked.has(key), ariaLabel: `tick population ${p + 1}`, onchange: showButtons });
    tick.dataset.key = `tick ${key}`;
    tick.dataset.population = p;
    const badge = element("button", { className: "badge", textContent: p + 1, title: "Show only these events; right click or c: colour", ariaPressed: String(state.only === p), onclick: () => only(p) });
    badge.style.background = own.colour;
    badge.style.color = own.ink;
    badge.dataset.key = `badge ${key}`;
    badge.oncontextmenu = (event) => { event.preventDefault(); choose(p, badge); };
    badge.onkeydown = (event) => { if (event.key === "c") { event.stopPropagation(); choose(p, badge); } };
    const name = element("input", { className: "name", value: own.name, maxLength: 60, ariaLabel: `name of population ${p + 1}` });
    name.onchange = () => decide({ do: "name", population: own.modes, name: name.value });
    name.dataset.key = `name ${key}`;
    const bar = element("div", { className: "bar" });
    const part = element("i");
    part.style.cssText = `left:0;width:${(100 * own.proportion) / most}%;background:${own.colour}`;
    bar.append(part);
    if (own.ends) {
      const ends = element("b");
      ends.style.cssText = `left:${(100 * own.ends[0]) / most}%;width:${(100 * (own.ends[1] - own.ends[0])) / most}%`;
      bar.append(ends);
    }
    return element("tr", {},
      element("td", {}, tick), element("td", {}, badge),
      element("td", {}, name, element("div", { className: "phenotype", textContent: own.phenotype })),
      element("td", { className: "share" }, `${own.percent} ${own.interval && `(${own.interval})`}`, bar),
      element("td", {}, own.support));
  }));
  if (focus) document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
}

const tickedRows = () => [...document.querySelectorAll(".tick:checked")].map((box) => ({ key: box.dataset.key.slice(5), p: Number(box.dataset.population) }));
const tickedModes = () => tickedRows().map(({ key }) => key.split(" ").map(Number));

function showButtons() {
  const ticked = tickedRows().length;
  byId("merge").disabled = ticked < 2;
  byId("split").disabled = ticked !== 1;
  byId("undo").disabled = !state.view.actions;
  byId("redo").disabled = !state.redo.length;
}

function choose(p, badge) {
  document.querySelector(".palette")?.remove();
  const own = state.view.populations[p];
  const close = () => { panel.remove(); badge.focus(); };
  const colour = (number) => { close(); decide({ do: "colour", population: own.modes, colour: number }); };
  const panel = element("div", { className: "palette", role: "dialog", ariaLabel: `colour of population ${p + 1}` },
    ...palette.map((code, number) => {
      const button = element("button", { title: `colour ${number + 1}`, ariaLabel: `colour ${number + 1}`, onclick: () => colour(number) });
      button.style.background = code;
      return button;
    }),
    element("button", { className: "wide-button", textContent: "default", onclick: () => colour(null) }));
  panel.onkeydown = (event) => { if (event.key === "Escape") close(); };
  badge.parentElement.append(panel);
  panel.querySelector("button").focus();
}

function only(p) {
  state.only = state.only === p ? -1 : p;
  state.chosen = null;
  for (const badge of document.querySelectorAll(".badge")) badge.ariaPressed = String(Number(badge.textContent) - 1 === state.only);
  draw();
}

// ---------------------------------------------------------------------------------------- figures

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plain = (text) => text.replaceAll("$$", "$\u2060$").replaceAll("\\(", "\\\u2060(").replaceAll("\\[", "\\\u2060[");

async function embed() {
  const figures = JSON.parse(byId("figures").textContent);
  for (const [name, item] of Object.entries(figures)) {
    const views = await Bokeh.embed.embed_item(item, `plot-${name}`);
    models[name] = views.roots[0].model;
  }
  for (let k = 0; k < plots; k++) {
    models[`pair${k}`].on_event("selectiongeometry", (event) => { if (event.final) select(k, event.geometry); });
    models[`pair${k}`].on_event("reset", () => { state.chosen = null; state.only = -1; showRows(); draw(); });
    for (const id of [`across${k}`, `up${k}`]) byId(id).onchange = () => { state.chosen = null; draw(); };
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

// Values where the plots draw them: those beyond an axis in its last bin.
function drawn(d) {
  const [low, high] = state.opened.ranges[d], half = (high - low) / (2 * bins);
  return column(d).map((value) => Math.max(low + half, Math.min(high - half, value)));
}

// Mark the events inside a box or a lasso of one plot; all plots then show them.
function select(k, geometry) {
  const x = drawn(Number(byId(`across${k}`).value)), y = drawn(Number(byId(`up${k}`).value));
  const inside = new Uint8Array(x.length);
  if (geometry.type === "rect") {
    const { x0, x1, y0, y1 } = geometry;
    for (let i = 0; i < x.length; i++) inside[i] = x[i] >= x0 && x[i] <= x1 && y[i] >= y0 && y[i] <= y1;
  } else {
    const xs = geometry.x, ys = geometry.y;
    for (let i = 0; i < x.length; i++) {
      let odd = 0;
      for (let a = 0, b = xs.length - 1; a < xs.length; b = a++)
        if (ys[a] > y[i] !== ys[b] > y[i] && x[i] < ((xs[b] - xs[a]) * (y[i] - ys[a])) / (ys[b] - ys[a]) + xs[a]) odd ^= 1;
      inside[i] = odd;
    }
  }
  state.chosen = inside.includes(1) ? inside : null;
  state.only = -1;
  showRows();
  draw();
}

function marked() {
  if (state.chosen) return state.chosen;
  if (state.only < 0) return null;
  return Uint8Array.from(state.population, (p) => p === state.only);
}

function draw() {
  if (!state.view) return;
  const mark = marked();
  for (let k = 0; k < plots; k++) drawPair(k, mark);
  showRareButtons();
  byId("selection").textContent = mark ? summary(mark) : "Select events with box or lasso in any plot, or a population by its number: all plots show them. Escape shows all.";
}

function summary(mark) {
  const counts = new Array(state.view.populations.length).fill(0);
  let all = 0;
  for (let i = 0; i < mark.length; i++) if (mark[i]) { counts[state.population[i]] += 1; all += 1; }
  const parts = counts.map((n, p) => [n, p]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 4);
  const share = (n, of) => `${short((100 * n) / of, 3)}%`;
  return `${all.toLocaleString("en")} of ${mark.length.toLocaleString("en")} events (${share(all, mark.length)}): ` +
    parts.map(([n, p]) => `${titleOf(p)} ${share(n, all)}`).join("; ");
}

function drawPair(k, mark) {
  const across = Number(byId(`across${k}`).value), up = Number(byId(`up${k}`).value);
  const figure = models[`pair${k}`], source = figure.document.get_model_by_name(`image${k}`);
  const [left, right] = state.opened.ranges[across], [bottom, top] = state.opened.ranges[up];
  const image = source.data.image[0];
  image.set(shades(column(across), column(up), left, right, bottom, top, mark));
  source.data = { image: [image], x: [left], y: [bottom], dw: [right - left], dh: [top - bottom] };
  source.change.emit(); // the image is the same array, so Bokeh may not notice the change
  const pair = `${across},${up}`;
  if (figure.tags[0] !== pair) {
    figure.tags = [pair];
    figure.x_range.setv({ start: left, end: right, reset_start: left, reset_end: right });
    figure.y_range.setv({ start: bottom, end: top, reset_start: bottom, reset_end: top });
    figure.below[0].axis_label = plain(state.opened.channels[across]);
    figure.left[0].axis_label = plain(state.opened.channels[up]);
  }
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
  const full = Math.log1p(Math.max(4, highest(counts))), fullOther = Math.log1p(Math.max(4, highest(other)));
  const mixed = (colour, depth) => {
    const [r, g, b] = colour.map((c, i) => Math.round(paper[i] + depth * (c - paper[i])));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  };
  for (let place = 0; place < area; place++) {
    if (counts[place]) {
      let best = 0;
      for (let p = 1; p < many; p++) if (votes[place * many + p] > votes[place * many + best]) best = p;
      image[place] = mixed(colours[best], 0.3 + 0.7 * Math.min(1, Math.log1p(counts[place]) / full));
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

// ---------------------------------------------------------------------------------------- files and runs

// The event rate as a line: 1 is the mean, the top is twice the mean.
function sparkline(rate) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${rate.length - 1} 2`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "rate");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `event rate over time, ${Math.min(...rate)} to ${Math.max(...rate)} of its mean`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", rate.map((value, at) => `${at},${2 - Math.min(2, value)}`).join(" "));
  for (const [name, value] of [["fill", "none"], ["stroke", "currentColor"], ["stroke-width", "1.5"], ["vector-effect", "non-scaling-stroke"]])
    line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

async function showFiles() {
  const files = await ask("files", {}, "reading the files …");
  byId("no-files").hidden = files.length > 0;
  closeChannels(); // the files are no longer ticked
  byId("files").replaceChildren(...files.map((file) => {
    const tick = element("input", { type: "checkbox", className: "file", value: file.name, disabled: Boolean(file.problem), ariaLabel: `tick ${file.name}` });
    const number = (value) => (value === null ? "" : value.toLocaleString("en"));
    return element("tr", {},
      element("td", {}, tick), element("td", { className: "phenotype", textContent: file.name }),
      element("td", { textContent: number(file.events) }), element("td", { textContent: number(file.channels) }),
      element("td", {}, ...(file.rate.length ? [sparkline(file.rate)] : [])),
      element("td", { className: "phenotype" }, ...(file.problem ? [element("div", { className: "problem", textContent: file.problem })] : []),
        ...file.remarks.map((remark) => element("div", { textContent: remark }))));
  }));
}

async function showRuns() {
  const runs = await ask("runs");
  const chosen = byId("run").value || decodeURIComponent(location.hash.slice(1));
  byId("run").replaceChildren(...runs.map((run) => new Option(
    run.error ? `${run.name}: cannot be read` : `${run.name} (${run.chains === 1 ? "" : `${run.chains} chains of `}${run.draws} ${run.draws === 1 ? "draw" : "draws"}${run.complete ? "" : ", not complete"}${run.decided ? ", decided" : ""})`, run.name)));
  if (!runs.length) byId("run").replaceChildren(new Option("none yet", ""));
  if (runs.some((run) => run.name === chosen)) byId("run").value = chosen;
  return runs;
}

let watching = false;
async function watchJobs() {
  if (watching) return;
  watching = true;
  try {
    for (let before = null; ; await new Promise((done) => setTimeout(done, 1500))) {
      const jobs = await ask("commands");
      const active = jobs.filter((job) => job.state === "running" || job.state === "waiting").length;
      showJobs(jobs, active);
      if (active || before) {
        await showRuns();
        if (byId("begin").open) await showProgress().catch((error) => { byId("progress").textContent = error.message; });
      }
      if (!active) break;
      before = active;
    }
  } finally { watching = false; }
}

function showJobs(jobs, active) {
  byId("commands").hidden = !jobs.length;
  byId("running").textContent = active ? `(${active} not finished)` : "";
  const stop = (job) => element("button", { textContent: "Stop", onclick: () => guarded(() => ask("stop", { number: job.number })) });
  byId("jobs").replaceChildren(...jobs.toReversed().map((job) => element("div", {},
    element("p", {}, element("strong", { textContent: job.state }), " ", element("code", { textContent: job.command }), " ",
      ...(job.state === "running" || job.state === "waiting" ? [stop(job)] : [])),
    element("pre", { textContent: job.lines.join("\n") }))));
  for (const lines of byId("jobs").querySelectorAll("pre")) lines.scrollTop = lines.scrollHeight;
}

// The engine of the next run, as in a config.
function engineSettings() {
  const backend = byId("backend").value, threads = byId("threads").value, devices = byId("devices").value;
  if (backend === "cpu" && threads) return { backend, threads: Number(threads) };
  if (backend === "cuda" && devices.trim()) return { backend, devices: devices.split(",").map(Number) };
  return backend === "auto" ? {} : { backend };
}

const isQuick = () => document.querySelector("[name=quality]:checked").value === "quick";
const started = (work) => guarded(async () => {
  await work();
  byId("commands").open = true;
  await watchJobs();
});

// ---------------------------------------------------------------------------------------- start

async function open(run) {
  state.run = run;
  state.redo = [];
  Object.assign(state, { chosen: null, only: -1, view: null });
  byId("work").hidden = true;
  byId("about").textContent = "";
  const opened = await ask("open", { run }, `finding the populations of ${run} …`);
  const answer = await fetch(`values?run=${encodeURIComponent(run)}`);
  state.values = new Float32Array(await answer.arrayBuffer());
  state.opened = opened;
  location.hash = encodeURIComponent(run);
  byId("about").textContent = `${opened.all_events.toLocaleString("en")} events, ${opened.channels.length} channels, ${opened.draws} ${opened.draws === 1 ? "draw" : "draws"} used`;
  byId("cut").max = opened.most;
  const shown = opened.events < opened.all_events ? `${opened.events.toLocaleString("en")} of the events, evenly spaced` : "all events";
  byId("note").textContent = `Proportions are weights of the populations in the draws of the run; dpmix gate counts the events of each sample, and its intervals are usually narrower. Plots show ${shown}. Support: share of the draws that have the population. To choose a colour, right click on a number, or press c on it. ${opened.warnings.join(" ")}`;
  const names = opened.channels.map((name, c) => [name, c]);
  for (let k = 0; k < plots; k++) {
    const [a, b] = [(2 * k) % names.length, (2 * k + 1) % names.length];
    [[`across${k}`, a], [`up${k}`, a === b ? 0 : b]].forEach(([id, at]) => {
      byId(id).replaceChildren(...names.map(([name, c]) => new Option(name, c, false, c === at)));
    });
  }
  byId("work").hidden = false;
  await showWorkspaces();
  theme();
  resetRare();
  show(opened.view);
}

function keys(event) {
  const typing = event.target.matches?.("input:not([type=checkbox]):not([type=range]), select");
  if (!state.view || typing) return;
  const control = event.ctrlKey || event.metaKey;
  if (control && event.key === "z" && !event.shiftKey) undo();
  else if (control && (event.key === "y" || (event.key === "Z" && event.shiftKey))) redo();
  else if (control || event.altKey) return;
  else if (event.key === "m" && !byId("merge").disabled) byId("merge").click();
  else if (event.key === "s" && !byId("split").disabled) byId("split").click();
  else if (event.key === "Escape") { state.chosen = null; state.only = -1; showRows(); draw(); }
  else return;
  if (event.key !== "Escape") event.preventDefault();
}

async function start() {
  await embed();
  const runs = await showRuns();
  byId("begin").open = !runs.length;
  byId("begin").ontoggle = () => { if (byId("begin").open) guarded(async () => { await showFiles(); await showProgress(); }); };
  if (!runs.length) await showFiles();
  byId("run").onchange = () => guarded(async () => { followed = ""; if (byId("begin").open) await showProgress(); await open(byId("run").value); });
  byId("show").onclick = () => guarded(() => { byId("run").value = ofProgress(); return open(byId("run").value); });
  byId("resume").onclick = () => started(() => ask("resume", { run: ofProgress() }));
  byId("fit").onsubmit = (event) => {
    event.preventDefault();
    followed = `${byId("fit-name").value}.h5`;
    started(() => ask("fit", { files: tickedFiles(), name: byId("fit-name").value, quick: isQuick(), on: engineSettings(), ...settings() }));
  };
  byId("cut").oninput = () => preview(Number(byId("cut").value));
  byId("cut").onchange = () => decide({ do: "cut", populations: Number(byId("cut").value) });
  byId("default").onclick = () => decide({ do: "cut" });
  byId("undo").onclick = undo;
  byId("redo").onclick = redo;
  byId("merge").onclick = () => decide({ do: "merge", populations: tickedModes() });
  byId("split").onclick = () => decide({ do: "split", population: tickedModes()[0] });
  byId("export").onsubmit = (event) => {
    event.preventDefault();
    const formats = [...document.querySelectorAll("[name=format]:checked")].map((box) => box.value);
    started(() => ask("export", { run: state.run, output: byId("output").value, formats, strategy: byId("strategy").checked }));
  };
  byId("theme").onchange = () => {
    document.documentElement.dataset.theme = byId("theme").value;
    theme();
    drawTree();
    draw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); drawTree(); draw(); });
  document.addEventListener("keydown", keys);
  guarded(watchJobs); // commands that an earlier page has started
  if (runs.length) await open(byId("run").value);
  document.documentElement.setAttribute("data-ready", "true");
}

document.addEventListener("DOMContentLoaded", () => guarded(start));
