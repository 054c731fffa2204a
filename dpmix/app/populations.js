"use strict";
// The table of populations (dpmix/app/live.py), and what is decided in it.

function show(view, passing = false) {
  Object.assign(state, { view, passing });
  const packed = atob(view.of_events);
  state.population = new Uint16Array(Uint8Array.from(packed, (c) => c.charCodeAt(0)).buffer);
  if (state.only >= view.populations.length) state.only = -1;
  byId("number").value = view.populations.length;
  if (!passing) byId("cut").value = view.populations.length;
  byId("cut").setAttribute("aria-valuetext", `${view.populations.length} populations`);
  byId("why").textContent = `${view.populations.length} populations at level ${view.level.toPrecision(3)}: ${view.why}`;
  showCommand();
  showRows();
  showCounting();
  showButtons();
  drawTree();
  draw();
  document.documentElement.setAttribute("data-shown", view.revision);
  showVerdict();
  if (!passing) for (const follow of [judgeChains, countEvents, showGates, showProfiles, followExplored, followTypes]) follow().catch(fail);
}

// The proportions of `dpmix gate` follow those of the weights: after each decision if counting is quick, else on demand.
let counting = false, changedSince = false;
async function countEvents(asked = false) {
  changedSince = true;
  if (counting || !(asked || state.opened.counts) || state.counted?.revision === state.view.revision) return;
  counting = true;
  showCounting();
  try {
    while (changedSince && state.view && state.counted?.revision !== state.view.revision) {
      changedSince = false;
      const { run } = state, found = await ask("count", { run, revision: state.view.revision }, "counting the events of all draws …");
      if (found && run === state.run) state.counted = found;
    }
  } finally {
    counting = false;
    if (state.view) { showShares(); showCounting(); }
  }
}

// The verdict of `dpmix gate` takes seconds: only that of the latest decisions is asked for.
let judgingChains = false;
async function judgeChains() {
  if (judgingChains) return;
  judgingChains = true;
  try {
    while (state.view && state.verdict?.revision !== state.view.revision) {
      const { run } = state, found = await ask("verdict", { run, revision: state.view.revision }, "comparing the chains …");
      if (!found) break; // other decisions, which will be shown
      if (run === state.run) state.verdict = found;
    }
  } finally {
    judgingChains = false;
    if (state.view) showVerdict();
  }
}

function showVerdict() {
  const known = !state.passing && state.verdict?.revision === state.view.revision;
  byId("verdict").textContent = known ? state.verdict.text : "Comparing the chains …";
  byId("verdict").classList.toggle("differs", known && state.verdict.differs);
}

function showCounting() {
  const done = state.counted?.revision === state.view.revision;
  byId("count").hidden = done || counting || state.opened.counts;
  byId("counted").textContent = done ? "Proportions and intervals match dpmix gate: the events are counted in each draw."
    : `Proportions are weights of the populations in the draws; with the default coarseness their intervals are wider than those of dpmix gate.${counting ? " Counting the events …" : ""}`;
}

// A population as the view has it, with the proportion that was counted.
const shownRows = () => {
  const { counted, view } = state, known = !state.passing && counted?.revision === view.revision && counted.populations.length === view.populations.length;
  return view.populations.map((own, p) => (known ? { ...own, ...counted.populations[p] } : own));
};

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const titleOf = (p) => { const own = state.view.populations[p], type = cellType(p); return `${own.number} ${type && type !== own.name ? `${type}: ` : ""}${own.name || own.phenotype}`; };

function showRows() {
  const ticked = new Set(tickedRows().map((p) => p.key)), focus = document.activeElement?.dataset?.key;
  const populations = shownRows();
  const most = largestShare();
  byId("rows").replaceChildren(...bySize(populations).map((p) => {
    const own = populations[p];
    const key = own.modes.join(" ");
    const tick = element("input", { type: "checkbox", className: "tick", checked: ticked.has(key), ariaLabel: `tick population ${own.number}`, onchange: showButtons });
    tick.dataset.key = `tick ${key}`;
    tick.dataset.population = p;
    const badge = element("button", { className: "badge", textContent: own.number, title: "Show only these events; right click or c: colour", ariaPressed: String(state.only === p), onclick: () => only(p) });
    badge.style.background = own.colour;
    badge.style.color = own.ink;
    badge.dataset.key = `badge ${key}`;
    dragType(badge, p);
    badge.oncontextmenu = (event) => { event.preventDefault(); choose(p, badge); };
    badge.onkeydown = (event) => { if (event.key === "c") { event.stopPropagation(); choose(p, badge); } };
    const name = element("input", { className: "name", value: own.name, maxLength: 60, ariaLabel: `name of population ${own.number}` });
    name.onchange = () => decide({ do: "name", population: own.modes, name: name.value });
    name.dataset.key = `name ${key}`;
    const row = element("tr", {},
      element("td", {}, tick), element("td", {}, badge),
      element("td", {}, name, element("div", { className: "cell-type", title: sharesOfTypes(p), textContent: cellType(p) }), element("div", { className: "phenotype", title: own.full, textContent: own.phenotype })),
      shareCell(own, most), element("td", {}, own.support));
    row.dataset.population = p;
    return row;
  }), ...foundRow().map((own) => exploredRow(own, most)));
  if (focus) document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
}

// Rows stand in the order of the proportions that they show, as in the report.
const bySize = (populations) => populations.map((own, p) => p).sort((p, q) => populations[q].proportion - populations[p].proportion || p - q);

const rowOf = (p) => document.querySelector(`#rows tr[data-population="${p}"]`);

function shareCell(own, most) {
  const bar = element("div", { className: "bar" });
  const part = element("i");
  part.style.cssText = `left:0;width:${(100 * own.proportion) / most}%;background:${own.colour}`;
  bar.append(part);
  if (own.ends) {
    const ends = element("b");
    ends.style.cssText = `left:${(100 * own.ends[0]) / most}%;width:${(100 * (own.ends[1] - own.ends[0])) / most}%`;
    bar.append(ends);
  }
  return element("td", { className: "share" }, `${own.percent} ${own.interval && `(${own.interval})`}`, bar);
}

// The explored cells are a further population, whose events are in the others as well.
const largestShare = () => Math.max(...[...shownRows(), ...foundRow()].map((p) => (p.ends ? p.ends[1] : p.proportion)));

// What follows later than the other cells. These stay as they are: a person may be typing a name.
function showShares() {
  const most = largestShare(), populations = shownRows();
  byId("explored-row")?.remove();
  populations.forEach((own, p) => rowOf(p)?.querySelector(".share").replaceWith(shareCell(own, most)));
  const rows = bySize(populations).map(rowOf).filter(Boolean), focused = document.activeElement;
  if (rows.some((row, at) => byId("rows").children[at] !== row)) {
    byId("rows").append(...rows);
    if (byId("rows").contains(focused)) focused.focus();
  }
  byId("rows").append(...foundRow().map((own) => exploredRow(own, most)));
}

const foundRow = () => (rare.known?.population ? [rare.known.population] : []);

function exploredRow(own, most) {
  const badge = element("button", { className: "badge", textContent: state.view.populations.at(-1).number + 1, title: "Select these events in the plots", ariaPressed: "false", onclick: highlightFound });
  badge.style.background = own.colour;
  badge.style.color = own.ink;
  badge.dataset.key = "badge explored";
  return element("tr", { id: "explored-row", title: "Found by judging; each of these events is in a population above as well" },
    element("td"), element("td", {}, badge),
    element("td", {}, element("strong", { textContent: own.name }), element("div", { className: "phenotype", textContent: `${own.phenotype}; ${own.events.toLocaleString("en")} found by judging, each also in a population above` })),
    shareCell(own, most), element("td"));
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
  const panel = element("div", { className: "palette", role: "dialog", ariaLabel: `colour of population ${own.number}` },
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
  unselect();
  for (const badge of document.querySelectorAll(".badge")) badge.ariaPressed = String(Number(badge.textContent) === state.view.populations[state.only]?.number);
  draw();
}
