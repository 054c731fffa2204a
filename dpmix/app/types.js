"use strict";
// Cell types by a table (dpmix/app/cell_types.py): the table is edited here, stored next to the run by the server, and the
// types of events and populations follow. A row without a name or without any cell is not stored.

const types = { known: null, grid: [], past: [], line: Promise.resolve(), changed: false, dragged: null };
const levelTexts = ["+", "-", "++", "lo", "mid", "-|lo", "lo|+"];
const notMarkers = ["parent", "kind", "cl", "level"];

function resetTypes() {
  Object.assign(types, { known: null, grid: [], past: [], dragged: null });
  for (const id of ["types-problem", "types-remarks", "types-head", "types-rows"]) byId(id).replaceChildren();
  if (byId("types").open || state.opened.typed) typesAction(readTypes);
  else showTypes();
}

// One action after another. A problem of the table is shown next to it; what a person has written stays.
const typesAction = (work) => (types.line = types.line.then(async () => {
  try {
    await work();
    byId("types-problem").textContent = types.known?.problem ?? "";
  } catch (error) {
    if (error.stale) await readTypes().catch(() => {});
    byId("types-problem").textContent = error.message;
  }
  markTypes();
}));

async function askTypes(name, given = {}) {
  const { run } = state, known = await ask(name, { run, ...given }, "finding cell types …");
  if (run !== state.run) return false;
  types.known = known;
  return true;
}

async function readTypes() {
  if (await askTypes("types")) showTypes();
}

// Change the stored table in another way than by its cells; rows that are not complete stay.
async function changeTypes(name, given) {
  const before = types.known.lines;
  if (!(await askTypes(name, { revision: types.known.revision, ...given }))) return;
  types.past.push(before);
  showTypes();
}

// The cells as they are now: of several changes while the server computes, the last one is sent.
function sendTypes() {
  types.changed = true;
  return typesAction(async () => {
    if (!types.changed) return;
    types.changed = false;
    const before = types.known.lines, lines = [typesHead(), ...types.grid.filter(isComplete)];
    if ((lines.length < 2 && !before.length) || JSON.stringify(lines) === JSON.stringify(before)) return;
    if (await askTypes("edit_types", { revision: types.known.revision, lines })) types.past.push(before);
  });
}

const typesHead = () => (types.known.lines.length ? types.known.lines : types.known.empty)[0];
const isMarker = (column) => column > 0 && !notMarkers.includes(typesHead()[column].toLowerCase());
const isComplete = (row) => row[0].trim() && (row.some((cell, c) => isMarker(c) && cell.trim()) || types.grid.some((other) => other[typesHead().indexOf("parent")] === row[0]));

// The type of a population after the decisions shown, "" where it is not known.
function cellType(p) {
  const { known } = types;
  return !state.passing && known?.types && known.decided === state.view.revision ? known.types[p] : "";
}

function sharesOfTypes(p) {
  if (!cellType(p)) return "";
  const names = [...types.known.lines.slice(1).map((row) => row[0]), "unknown"];
  const found = types.known.shares[p].map((share, r) => [share, names[r]]).filter(([share]) => share >= 0.02).sort((a, b) => b[0] - a[0]);
  return found.map(([share, name]) => `${name} ${Math.round(100 * share)}%`).join(", ");
}

// After decisions, populations are others.
async function followTypes() {
  if (types.known?.lines.length && types.known.decided !== state.view.revision) await typesAction(readTypes);
}

// ---------------------------------------------------------------------------------------- what is shown

function showTypes() {
  const { known } = types;
  if (known) {
    const waiting = types.grid.filter((row) => row.length === typesHead().length && !isComplete(row));
    types.grid = [...known.lines.slice(1).map((row) => [...row]), ...waiting];
    showTypesSources();
    showTypesGrid();
  }
  markTypes();
}

function showTypesSources() {
  const { sources, file, lines, empty } = types.known;
  byId("types-source").replaceChildren(new Option("a table …", ""), ...sources.filter((name) => name !== file).map((name) => new Option(name, name)), ...(lines.length ? [new Option("none: remove the table", "no table")] : []));
  byId("types-remarks").textContent = types.known.remarks.join(" ");
  const absent = empty[0].slice(2).filter((name) => !typesHead().includes(name));
  byId("types-marker").replaceChildren(new Option("a marker …", ""), ...absent.map((name) => new Option(name, name)));
}

function showTypesGrid() {
  const head = typesHead(), focus = document.activeElement?.dataset?.type;
  byId("types-head").replaceChildren(...head.map((name, c) => {
    const cell = element("th", { textContent: c ? name : "Cell type", scope: "col" });
    if (isMarker(c)) cell.dataset.marker = name;
    return cell;
  }), element("th", { textContent: "Events" }), element("th", { textContent: "Certainty" }), element("th", {}, element("span", { className: "hidden", textContent: "Remove" })));
  byId("types-rows").replaceChildren(...types.grid.map(typeRow), element("tr", { id: "types-unknown-row" }, element("th", { textContent: "unknown", scope: "row", colSpan: head.length }), element("td", { className: "events" }), element("td", { className: "certainty" }), element("td")));
  if (focus) document.querySelector(`[data-type="${CSS.escape(focus)}"]`)?.focus();
}

function typeRow(row, at) {
  const head = typesHead();
  const made = element("tr", {}, ...row.map((text, c) => {
    const input = element("input", { value: text, className: c === 0 ? "name" : isMarker(c) ? "level" : "other", ariaLabel: c ? `${head[c]} of ${row[0] || "the new row"}` : "name of the cell type" });
    if (isMarker(c)) input.setAttribute("list", "types-levels");
    input.dataset.type = `${at} ${c}`;
    input.onchange = () => { row[c] = input.value.trim(); sendTypes(); };
    const cell = element("td", {}, input);
    if (isMarker(c)) cell.dataset.marker = head[c];
    return cell;
  }), element("td", { className: "events" }), element("td", { className: "certainty" }),
    element("td", {}, element("button", { type: "button", textContent: "×", title: "Remove the row", ariaLabel: `remove ${row[0] || "the new row"}`, onclick: () => { types.grid.splice(types.grid.indexOf(row), 1); showTypesGrid(); sendTypes(); } })));
  made.ondragover = (event) => { if (types.dragged !== null && isComplete(row)) { event.preventDefault(); made.classList.add("target"); } };
  made.ondragleave = () => made.classList.remove("target");
  made.ondrop = (event) => { event.preventDefault(); made.classList.remove("target"); widen(types.dragged, row); };
  return made;
}

const widen = (population, row) => typesAction(() => changeTypes("add_type", { population, row: types.grid.filter(isComplete).indexOf(row) }));

// Numbers and marks of the table as it is stored; the fields stay, because a person may be writing in one.
function markTypes() {
  const { known, grid } = types;
  byId("types-undo").disabled = !types.past.length;
  byId("types-row").disabled = byId("types-source").disabled = byId("types-marker").disabled = !known;
  byId("types-events").textContent = known ? known.events.toLocaleString("en") : "some";
  byId("types-save").hidden = !known?.lines.length;
  if (known) {
    const stored = grid.filter(isComplete);
    [...byId("types-rows").children].slice(0, grid.length).forEach((row, at) => markTypeRow(row, stored.indexOf(grid[at])));
    const last = byId("types-unknown-row")?.querySelectorAll(".events, .certainty"), rest = known.rows?.at(-1);
    if (last) [last[0].textContent, last[1].textContent] = [rest?.share ?? "", rest?.certainty ?? ""];
    for (const cell of byId("types-head").querySelectorAll("[data-marker]")) {
      const why = known.absent?.includes(cell.dataset.marker) ? "not in the panel" : known.flat?.includes(cell.dataset.marker) ? "no two levels apart in these data: it hardly counts" : "";
      cell.classList.toggle("weak", Boolean(why));
      cell.title = why;
    }
  }
  showUnknown();
  if (state.view) showCommand();
  for (const row of byId("rows").children) {
    const p = Number(row.dataset.population);
    const cell = row.querySelector(".cell-type");
    if (cell) Object.assign(cell, { textContent: cellType(p), title: sharesOfTypes(p) });
  }
  if (models.tree) drawTree();
  document.documentElement.setAttribute("data-typed", `${known?.revision ?? ""} ${known?.decided ?? ""}`);
}

function markTypeRow(made, row) {
  const { known } = types, own = row < 0 ? null : known.rows?.[row];
  made.querySelector(".events").textContent = own?.share ?? (row < 0 ? "not complete" : "");
  made.querySelector(".certainty").textContent = own?.certainty ?? "";
  for (const cell of made.querySelectorAll("[data-marker]")) {
    const key = `${row} ${cell.dataset.marker}`, agreement = row < 0 ? undefined : known.agreement?.[key];
    const contradicted = row >= 0 && Boolean(known.contradicted?.includes(key));
    cell.classList.toggle("contradicted", contradicted);
    cell.title = agreement === undefined ? "" : `${Math.round(100 * agreement)}% of the events of the row agree${contradicted ? ": the cell is not used; it is wrong, or a type has no row" : ""}`;
  }
}

function showUnknown() {
  const { known } = types, found = !state.passing && known?.unknown && known.decided === state.view?.revision ? known.unknown : [];
  byId("types-unknown-part").hidden = !found.length;
  byId("types-unknown").replaceChildren(...found.map(({ population: p, cells }) => {
    const own = state.view.populations[p];
    const badge = element("span", { className: "badge", textContent: own.number, title: "Drag it to a row" });
    badge.style.background = own.colour;
    badge.style.color = own.ink;
    dragType(badge, p);
    const rows = element("select", { ariaLabel: `let a row include population ${own.number}` }, new Option("Include it in …", ""), ...types.grid.filter(isComplete).map((row, at) => new Option(row[0], at)));
    rows.onchange = () => widen(p, types.grid.filter(isComplete)[Number(rows.value)]);
    return element("li", {}, badge, ` ${own.percent} `, element("span", { className: "cells", textContent: cells || own.phenotype }), " ",
      element("button", { type: "button", textContent: "Make a row", onclick: () => typesAction(() => changeTypes("add_type", { population: p })) }), " ", rows);
  }));
}

// Any population can be dragged to a row of the table.
function dragType(badge, p) {
  badge.draggable = true;
  badge.ondragstart = (event) => { types.dragged = p; event.dataTransfer.setData("text/plain", String(state.view.populations[p].number)); };
  badge.ondragend = () => { types.dragged = null; };
}

function saveTypes() {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const text = types.known.lines.map((row) => `${row.map(quoted).join(",")}\n`).join("");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: address, download: "types.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

document.addEventListener("DOMContentLoaded", () => {
  byId("types").ontoggle = () => { if (byId("types").open && state.view && !types.known) typesAction(readTypes); };
  byId("types-levels").append(...levelTexts.map((text) => element("option", { value: text })));
  byId("types-source").onchange = () => typesAction(async () => {
    const source = byId("types-source").value;
    byId("types-source").value = "";
    types.grid = [];
    await changeTypes("load_types", { source });
  });
  byId("types-marker").onchange = () => {
    const name = byId("types-marker").value, { known } = types;
    known.lines = [[...typesHead(), name], ...known.lines.slice(1).map((row) => [...row, ""])];
    types.grid = types.grid.map((row) => [...row, ""]);
    showTypes();
  };
  byId("types-row").onclick = () => {
    types.grid.push(typesHead().map(() => ""));
    showTypesGrid();
    markTypes();
    byId("types-rows").children[types.grid.length - 1].querySelector("input").focus();
  };
  byId("types-undo").onclick = () => typesAction(async () => {
    const lines = types.past.at(-1);
    if (!(await askTypes("edit_types", { revision: types.known.revision, lines }))) return;
    types.past.pop();
    types.grid = [];
    showTypes();
  });
  byId("types-save").onclick = saveTypes;
});
