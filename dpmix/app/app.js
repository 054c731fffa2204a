"use strict";
// The page of dpmix app. The server computes populations (dpmix/app/live.py); this script shows them, draws the
// events, and sends what is decided.

const byId = (id) => document.getElementById(id);
const bins = 128, plots = 4;
const palette = JSON.parse(byId("palette").textContent);
const state = { run: "", opened: null, view: null, values: null, population: null, selection: null, chosen: null, only: -1, counted: null, verdict: null, redo: [] };
const models = {}, views = {}; // of Bokeh, by the name of the plot

// ---------------------------------------------------------------------------------------- server

let waiting = 0;
const ask = (name, given = {}, text = "working …") => post(`do/${name}`, JSON.stringify(given), text);
const post = (path, body, text) => request(path, { method: "POST", body }, text);

async function request(path, options, text) {
  waiting += 1;
  byId("busy").textContent = text;
  const shown = setTimeout(() => { byId("busy").hidden = false; }, 150);
  try {
    const answer = await fetch(path, options);
    if (answer.ok && answer.headers.get("Content-Type") === "application/octet-stream") return await answer.arrayBuffer();
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
      show({ ...view, revision: state.view.revision, actions: state.view.actions, action }, true);
    }
  } catch (error) { fail(error); } finally { previewing = false; }
}

// ---------------------------------------------------------------------------------------- start

async function open(run) {
  state.run = run;
  state.redo = [];
  Object.assign(state, { selection: null, chosen: null, only: -1, view: null, counted: null, verdict: null });
  byId("work").hidden = true;
  byId("about").textContent = "";
  const opened = await ask("open", { run }, `finding the populations of ${run} …`);
  state.values = new Float32Array(await request(`values?run=${encodeURIComponent(run)}`, {}, "reading the events …"));
  state.opened = opened;
  location.hash = encodeURIComponent(run);
  byId("about").textContent = `${opened.all_events.toLocaleString("en")} events, ${opened.channels.length} channels, ${opened.draws} ${opened.draws === 1 ? "draw" : "draws"} used`;
  byId("cut").max = opened.most;
  byId("note").textContent = `Support: share of the draws that have the population. To choose a colour, right click on a number, or press c on it. ${opened.warnings.join(" ")}`;
  const names = opened.channels.map((name, c) => [name, c]);
  for (let k = 0; k < plots; k++) {
    const [a, b] = opened.pairs[k % opened.pairs.length] ?? [0, 0]; // those that separate the populations
    [[`across${k}`, a], [`up${k}`, b]].forEach(([id, at]) => {
      byId(id).replaceChildren(...names.map(([name, c]) => new Option(name, c, false, c === at)));
    });
  }
  byId("work").hidden = false;
  byId("carried").hidden = !opened.notes.length;
  byId("carried").replaceChildren(...opened.notes.map((note) => element("li", { textContent: note })));
  showPreliminary({ complete: false, draws: opened.made, planned: opened.planned });
  watchRun().catch(fail);
  await showWorkspaces();
  theme();
  resetRare();
  resetTypes();
  show(opened.view);
}

// Populations of a run that goes on are those of its draws so far.
function showPreliminary(row) {
  const shown = state.opened, preliminary = !shown.complete;
  byId("preliminary").hidden = !preliminary;
  if (!preliminary) return;
  const ended = row.complete, draws = (n) => `${n.toLocaleString("en")} of at most ${row.planned.toLocaleString("en")} draws`;
  byId("preliminary-text").textContent = ended ? "The run has finished:"
    : `Preliminary: ${draws(shown.made)}.${row.draws > shown.made ? ` The run has ${draws(row.draws)} now.` : ""}`;
  byId("renew").hidden = !ended && row.draws <= shown.made;
}

let watchingRun = false;
async function watchRun() {
  if (watchingRun) return;
  watchingRun = true;
  try {
    while (state.opened && !state.opened.complete) {
      await new Promise((done) => setTimeout(done, 2000));
      const row = (await showRuns()).find((run) => run.name === state.run);
      if (!row || row.error) continue;
      showPreliminary(row);
      if (row.complete) break;
    }
  } finally { watchingRun = false; }
}

function keys(event) {
  const typing = event.target.matches?.("input:not([type=checkbox], [type=range], [type=radio]), select");
  if (!state.view || typing) return;
  const control = event.ctrlKey || event.metaKey;
  if (control && event.key === "z" && !event.shiftKey) undo();
  else if (control && (event.key === "y" || (event.key === "Z" && event.shiftKey))) redo();
  else if (control || event.altKey) return;
  else if (event.key === "m" && !byId("merge").disabled) byId("merge").click();
  else if (event.key === "s" && !byId("split").disabled) byId("split").click();
  else if (event.key === "Escape") showAll();
  else return;
  if (event.key !== "Escape") event.preventDefault();
}

async function start() {
  await embed();
  startPoints();
  const runs = await showRuns();
  byId("begin").open = !runs.length;
  byId("begin").ontoggle = () => { if (byId("begin").open) guarded(async () => { await showFiles(); await showProgress(); }); };
  if (!runs.length) await showFiles();
  byId("run").onchange = () => guarded(async () => { followed = ""; if (byId("begin").open) await showProgress(); await open(byId("run").value); });
  byId("show").onclick = () => guarded(async () => {
    byId("run").value = ofProgress();
    await open(byId("run").value);
    byId("work").scrollIntoView({ behavior: "smooth" });
  });
  byId("resume").onclick = () => started(() => ask("resume", { run: ofProgress() }));
  byId("fit").onsubmit = (event) => {
    event.preventDefault();
    followed = `${byId("fit-name").value}.h5`;
    started(() => ask("fit", { files: tickedFiles(), name: byId("fit-name").value, quick: isQuick(), on: engineSettings(), ...settings() }));
  };
  byId("renew").onclick = () => guarded(() => open(state.run));
  byId("cut").oninput = () => preview(Number(byId("cut").value));
  byId("cut").onchange = () => decide({ do: "cut", populations: Number(byId("cut").value) });
  byId("count").onclick = () => guarded(() => countEvents(true));
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
  const chosen = runs.find((run) => run.name === byId("run").value);
  if (chosen && (chosen.error || chosen.draws)) await open(chosen.name); // a run that has just started has no draw yet
  document.documentElement.setAttribute("data-ready", "true");
}

document.addEventListener("DOMContentLoaded", () => guarded(start));
