"use strict";
// Populations next to the gates of a FlowJo workspace (dpmix/app/gates.py). The comparison follows every decision.

async function showWorkspaces() {
  const found = await ask("workspaces"), chosen = byId("workspace").value;
  byId("workspace").replaceChildren(new Option(found.length ? "none" : "none in the folder", ""), ...found.map((name) => new Option(name, name, false, name === chosen)));
  byId("workspace").disabled = !found.length;
  if (byId("workspace").value !== chosen) hideGates();
}

function hideGates() {
  byId("gates-part").hidden = true;
  byId("gates-note").textContent = "";
}

// Decisions may follow each other while the server compares: the last ones are always asked for.
let comparing = false, changedMeanwhile = false;
async function showGates() {
  if (!byId("workspace").value) return hideGates();
  changedMeanwhile = true;
  if (comparing) return;
  comparing = true;
  try {
    while (changedMeanwhile && state.view && byId("workspace").value) {
      changedMeanwhile = false;
      const { run } = state, revision = state.view.revision, workspace = byId("workspace").value;
      const found = await ask("compare", { run, workspace }, `applying the gates of ${workspace} …`);
      if (run !== state.run || revision !== state.view?.revision || workspace !== byId("workspace").value) changedMeanwhile = true;
      else drawGates(found);
    }
  } catch (error) {
    hideGates();
    throw error;
  } finally { comparing = false; }
}

function populationButton(p) {
  const own = state.view.populations[p];
  const button = element("button", { className: "badge", textContent: own.number, title: `Show only these events: ${titleOf(p)}`, ariaPressed: String(state.only === p), onclick: () => only(p) });
  button.style.background = own.colour;
  button.style.color = own.ink;
  return button;
}

function drawGates(found) {
  const number = (value) => value.toFixed(2), named = (p) => (state.view.populations[p].name ? [" ", state.view.populations[p].name] : []);
  byId("gates").replaceChildren(...found.gates.map((gate) => {
    const cell = (...content) => element("td", {}, ...content), p = gate.population;
    const name = element("td", { className: "gate", title: gate.gate });
    name.style.paddingLeft = `${0.45 + 0.9 * (gate.gate.split("/").length - 1)}rem`;
    name.textContent = gate.gate.split("/").at(-1);
    const matched = p < 0 ? [cell("none"), cell(), cell(), cell()]
      : [cell(populationButton(p), ...named(p)), cell(number(gate.f1)), cell(number(gate.precision)), cell(number(gate.recall))];
    const union = gate.union.length ? `${number(gate.union_f1)} (${gate.union.map((one) => state.view.populations[one].number).join(", ")})` : "";
    return element("tr", {}, name, cell(gate.events.toLocaleString("en")), ...matched, cell(union));
  }));
  byId("gates-part").hidden = false;
  const mean = found.mean === null ? "" : ` Mean F1 of the gates without gates inside: ${number(found.mean)}.`;
  const unread = found.unread.map((line) => `${line}. `).join("");
  byId("gates-note").textContent = `${unread}${found.events.toLocaleString("en")} events, those of the plots.${mean} Precision: share of the population inside the gate. Recall: share of the gate in the population. Best union: F1 and numbers of the populations that are together most similar to the gate.`;
}

document.addEventListener("DOMContentLoaded", () => {
  byId("workspace").onchange = () => guarded(showGates);
});
