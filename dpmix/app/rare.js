"use strict";
// Rare cells by judging (dpmix/app/judging.py): screens of events, each judged by mouse or keyboard. Judgements are stored
// with the next screen. The numbers and the events found follow while the next screen is judged: counting takes longer.

const words = { wanted: "w", part: "p", unwanted: "u" }, titles = { wanted: "wanted", part: "in part", unwanted: "unwanted" };
const mostChannels = 12; // of a profile at first
const rare = { known: null, screen: null, judged: new Map(), channels: [], working: false };

function resetRare() {
  Object.assign(rare, { known: null, screen: null, channels: state.opened.channels.map((_, c) => c).slice(0, mostChannels) });
  rare.judged.clear();
  byId("rare-channels").replaceChildren(...state.opened.channels.map((name, c) => {
    const tick = element("input", { type: "checkbox", checked: c < mostChannels });
    tick.onchange = () => {
      rare.channels = state.opened.channels.map((_, d) => d).filter((d) => byId("rare-channels").querySelectorAll("input")[d].checked);
      showCards();
    };
    return element("label", {}, tick, ` ${name}`);
  }));
  showRare();
  if (byId("rare").open || state.opened.judged) rareAction(readRare);
}

// One action at a time. After an error the state of the file is read again: another tab may have changed it.
async function rareAction(work) {
  if (rare.working) return;
  const { run } = state;
  rare.working = true;
  fail(null);
  showRareButtons();
  try {
    await work();
  } catch (error) {
    if (error.stale) {
      rare.screen = null;
      rare.judged.clear();
      await readRare().catch(() => {});
    }
    fail(error);
  } finally {
    rare.working = false;
    showRare();
  }
  if (run !== state.run) await rareAction(readRare); // another run was opened meanwhile
}

async function readRare() {
  const { run } = state, known = await ask("judged", { run }, "reading the judgements …");
  if (run !== state.run) return;
  rare.known = known;
  showShares();
  showCommand();
}

// The numbers after a screen, unless there are further judgements meanwhile, which are counted then.
async function countRare() {
  const { run } = state, found = await ask("judged", { run }, "counting the cells …");
  if (run !== state.run || found.revision !== rare.known.revision) return;
  rare.known = found;
  showCommand();
  if (found.found_shown) highlightFound();
  else showShares();
  showRareNumbers();
  showRareButtons();
}

// `dpmix gate` with the judgements, where an event is wanted, and the table of cell types.
function showCommand() {
  byId("command").textContent = [rare.known?.commands[1] ?? state.view.command, types.known?.option].filter(Boolean).join(" ");
}

const selectedEvents = () => {
  const mark = marked(state), found = [];
  if (mark) for (let i = 0; i < mark.length; i++) if (mark[i]) found.push(i);
  return found;
};

async function nextScreen(selected = null) {
  const { run } = state, further = Number(byId("further").value), { screen, judged } = rare;
  const given = { run, further, ...(selected ? { selected } : {}) };
  const text = "learning, and choosing the next screen …";
  const found = judged.size
    ? await ask("judge", { ...given, revision: rare.known.revision, judgements: Object.fromEntries(judged), checks: screen.checks }, text)
    : await ask("candidates", given, text);
  if (run !== state.run) return;
  takeRare(found);
  byId("cards").querySelector(".card")?.focus({ preventScroll: true });
}

function takeRare(found) {
  rare.known = { ...rare.known, ...found, lines: [`${found.judged.toLocaleString("en")} events judged; counting …`] };
  rare.screen = found.screen;
  rare.judged = new Map(Object.entries(found.judgements ?? {}).map(([row, word]) => [Number(row), word]));
  showCards();
  showCommand();
  countRare().catch(fail);
}

function highlightFound() {
  state.selection = { found: true };
  state.chosen = Uint8Array.from(atob(rare.known.is_found), (c) => c.charCodeAt(0));
  state.only = -1;
  showRows();
  draw();
}

// After decisions, its number, phenotype and command may be others.
async function followExplored() {
  if (rare.known?.population && !rare.working) await readRare();
}

// After decisions, events may belong to other populations.
async function showProfiles() {
  if (!rare.screen) return;
  const { run } = state, { screen } = rare;
  const found = await ask("profiles", { run, rows: screen.events.map((own) => own.row) });
  if (run !== state.run || screen !== rare.screen) return;
  Object.assign(screen, found);
  showCards();
}

// ---------------------------------------------------------------------------------------- what is shown

function showRare() {
  showRareNumbers();
  showCards();
  showRareButtons();
}

function showRareNumbers() {
  const { known } = rare;
  byId("rare-numbers").replaceChildren(...(known?.lines ?? []).map((text) => element("li", { textContent: text })));
  const shown = known?.found ? `Plots show ${known.found_shown.toLocaleString("en")} of the events found.` : "";
  byId("rare-shown").textContent = shown;
  byId("rare-commands").replaceChildren(...(known?.commands ?? []).map((text) => element("div", {}, element("code", { textContent: text }))));
  byId("rare-without").hidden = !known?.commands.length;
}

function showRareButtons() {
  const { known, screen, judged, working } = rare;
  byId("rare-next").textContent = screen ? `Store ${judged.size || "the"} judgement${judged.size === 1 ? "" : "s"} and show the next screen` : known?.judged ? "Show the next screen" : "Start from random events";
  byId("rare-next").disabled = working || !known || Boolean(screen && !judged.size);
  byId("rare-selected").textContent = screen ? "Next screen from the selected events" : "Start from the selected events";
  byId("rare-selected").disabled = working || !known || (state.chosen ? !state.chosen.includes(1) : state.only < 0);
  byId("rare-undo").disabled = working || !known?.screens;
  byId("rare-found").disabled = working || !known?.found_shown;
}

function showCards() {
  byId("rare-help").hidden = !rare.screen;
  if (!rare.screen || !state.view) return byId("cards").replaceChildren();
  const focus = document.activeElement?.dataset?.card;
  byId("cards").replaceChildren(...rare.screen.events.map(card));
  if (focus) byId("cards").querySelector(`[data-card="${focus}"]`)?.focus({ preventScroll: true });
}

function card(own, at) {
  const { population: p } = own, population = state.view.populations[p];
  const sample = state.opened.samples.length > 1 ? `${own.sample}, ` : "";
  const made = element("div", { className: "card", tabIndex: 0, role: "group", ariaLabel: `candidate ${at + 1}, ${sample}event ${own.event}` });
  const badge = element("span", { className: "badge", textContent: population.number });
  badge.style.background = population.colour;
  badge.style.color = population.ink;
  const check = rare.screen.checks.includes(own.row) ? " (check)" : "";
  const buttons = Object.entries(words).map(([word, key]) => element("button", { type: "button", textContent: titles[word], title: `${key}: ${titles[word]}`, tabIndex: -1, onclick: () => judgeCard(own.row, word) }));
  Object.entries(words).forEach(([word], k) => { buttons[k].dataset.word = word; });
  made.dataset.card = own.row;
  made.append(
    element("div", { className: "card-head" }, badge, element("span", { className: "card-name", title: titleOf(p), textContent: population.name || population.phenotype })),
    profile(own, population),
    element("div", { className: "card-event", textContent: `${sample}event ${own.event}${check}` }),
    element("div", { className: "judgement" }, ...buttons));
  markCard(made, own.row);
  return made;
}

function markCard(made, row) {
  const word = rare.judged.get(row);
  made.dataset.judged = word ?? "";
  for (const button of made.querySelectorAll("button")) button.ariaPressed = String(button.dataset.word === word);
}

// One line for each channel: the axis has nearly all events, the bar has 90% of the population, the dot is the event.
function profile(own, population) {
  const step = 15, left = 70, width = 220, height = rare.channels.length * step + 2;
  const described = rare.channels.map((c) => `${state.opened.channels[c]} ${own.values[c].toFixed(2)}`).join(", ");
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, class: "profile", role: "img", "aria-label": `values: ${described}` });
  rare.channels.forEach((c, k) => {
    const [low, high] = state.opened.ranges[c], y = (k + 0.5) * step + 1;
    const across = (value) => left + 4 + (Math.max(0, Math.min(1, (value - low) / (high - low || 1)))) * (width - left - 9);
    const line = svgElement("g", {}), name = svgElement("text", { x: 0, y: y + 3.5 }), title = svgElement("title", {});
    const full = state.opened.channels[c], range = rare.screen.ranges[own.population]?.[c];
    name.textContent = full.length > 10 ? `${full.slice(0, 9)}…` : full;
    title.textContent = `${full}: ${own.values[c].toFixed(3)}${range ? `; population: ${range[0].toFixed(3)} to ${range[2].toFixed(3)}, median ${range[1].toFixed(3)}` : ""}`;
    line.append(title, name, svgElement("path", { class: "axis", d: `M${left + 4},${y}H${width - 5}` }));
    if (range) {
      line.append(svgElement("rect", { x: across(range[0]), width: Math.max(1, across(range[2]) - across(range[0])), y: y - 4, height: 8, rx: 2, fill: population.colour, opacity: 0.55 }));
      line.append(svgElement("path", { class: "median", d: `M${across(range[1])},${y - 4}v8` }));
    }
    line.append(svgElement("circle", { cx: across(own.values[c]), cy: y, r: 3.6 }));
    svg.append(line);
  });
  return svg;
}

// ---------------------------------------------------------------------------------------- judgements

// The same word again takes the judgement back.
function judgeCard(row, word) {
  if (rare.working) return;
  if (!word || rare.judged.get(row) === word) rare.judged.delete(row);
  else rare.judged.set(row, word);
  markCard(byId("cards").querySelector(`[data-card="${row}"]`), row);
  showRareButtons();
}

function rareKeys(event) {
  const own = event.target.closest(".card");
  if (!own || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...byId("cards").children], at = all.indexOf(own);
  const columns = all.filter((one) => one.offsetTop === all[0].offsetTop).length;
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  const word = Object.keys(words).find((one) => words[one] === event.key);
  if (word) {
    judgeCard(Number(own.dataset.card), word);
    all[at + 1]?.focus();
  } else if (event.key in moves) all[at + moves[event.key]]?.focus();
  else if (event.key === "Backspace") judgeCard(Number(own.dataset.card), "");
  else if (event.key === "Enter" && event.target === own && !byId("rare-next").disabled) byId("rare-next").click();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

document.addEventListener("DOMContentLoaded", () => {
  byId("rare").ontoggle = () => { if (byId("rare").open && state.view && !rare.known) rareAction(readRare); };
  byId("rare-next").onclick = () => rareAction(() => nextScreen());
  byId("rare-selected").onclick = () => rareAction(() => nextScreen(selectedEvents()));
  byId("rare-undo").onclick = () => rareAction(async () => {
    const { run } = state;
    const found = await ask("unjudge", { run, revision: rare.known.revision }, "removing the last screen …");
    if (run === state.run) takeRare(found);
  });
  byId("rare-found").onclick = highlightFound;
  byId("cards").addEventListener("keydown", rareKeys);
});
