"use strict";
// The estimated time of a run (dpmix/app/estimate.py); during it, traces of its chains, their agreement, and the
// time left (dpmix/app/running.py).

const chart = { width: 460, height: 150, left: 62, right: 8, top: 8, bottom: 20 };

// Lines over two axes. `lines` have x, y, colour and, where they are drawn bold or dashed, a class.
function lineChart(title, { lines, x, y, shade = null, limit = null }) {
  const { width, height, left, right, top, bottom } = chart;
  const across = (value) => left + ((value - x[0]) / (x[1] - x[0] || 1)) * (width - left - right);
  const up = (value) => top + ((y[1] - Math.min(y[1], Math.max(y[0], value))) / (y[1] - y[0] || 1)) * (height - top - bottom);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, class: "lines", role: "img", "aria-label": title });
  if (shade) svg.append(svgElement("rect", { class: "shade", x: across(shade[0]), width: Math.max(0, across(shade[1]) - across(shade[0])), y: top, height: height - top - bottom }));
  svg.append(svgElement("path", { class: "frame", d: `M${left},${top}V${height - bottom}H${width - right}` }));
  const label = (text, at, anchor) => { const made = svgElement("text", { x: at[0], y: at[1], "text-anchor": anchor }); made.textContent = text; svg.append(made); };
  const few = (value) => value.toLocaleString("en", { maximumFractionDigits: y[1] - y[0] < 10 ? 2 : 0 });
  label(few(y[1]), [left - 5, top + 8], "end");
  label(few(y[0]), [left - 5, height - bottom], "end");
  label(x[0].toLocaleString("en"), [left, height - 5], "start");
  label(x[1].toLocaleString("en"), [width - right, height - 5], "end");
  if (limit !== null && limit < y[1]) {
    svg.append(svgElement("path", { class: "limit", d: `M${left},${up(limit)}H${width - right}` }));
    label(few(limit), [left - 5, up(limit) + 4], "end");
  }
  for (const line of lines) {
    const points = line.x.map((value, at) => `${across(value).toFixed(1)},${up(line.y[at]).toFixed(1)}`).join(" ");
    svg.append(svgElement("polyline", { points, stroke: line.colour, class: line.class ?? "" }));
  }
  return svg;
}

function traceChart(kind, trace) {
  const [unit, part] = kind === "mcmc" ? ["sweep", "chain"] : ["step", "start"];
  const lines = trace.values.map((y, k) => ({ x: trace.sweeps[k], y, colour: palette[k % palette.length] })).filter((line) => line.x.length);
  const burn = trace.burn_in === null ? (kind === "mcmc" ? trace.made : 0) : Math.min(trace.burn_in, trace.made);
  const parts = `${lines.length} ${part}${lines.length === 1 ? "" : "s"}`;
  const caption = `Log posterior by ${unit}, ${parts}${burn ? "; shaded: burn-in" : ""}`;
  return element("figure", {}, element("figcaption", { textContent: caption }),
    lineChart(caption, { lines, x: [0, Math.max(1, trace.made)], y: trace.window, shade: burn ? [0, burn] : null }));
}

function agreementChart(found) {
  const { draws, r_hat: rows, limit } = found;
  const worst = draws.map((_, at) => Math.max(...rows.map((row) => row[at])));
  const last = worst.at(-1), within = rows.filter((row) => row.at(-1) < limit).length;
  const lines = [...rows.map((y) => ({ x: draws, y, colour: "currentColor", class: "thin" })), { x: draws, y: worst, colour: "currentColor", class: "bold" }];
  const caption = `Agreement of chains: R-hat of the proportions of ${rows.length} interim populations by draw; bold: the largest; dashed: the limit`;
  const text = `After ${draws.at(-1).toLocaleString("en")} draws R-hat is at most ${last.toFixed(2)} and below ${limit} for ${within} of ${rows.length}; the smallest effective sample size is ${Math.round(found.ess).toLocaleString("en")} (${found.ess_limit} asked).`;
  const top = Math.max(2 * limit - 1, ...worst.slice(Math.floor(worst.length / 2)));
  return element("figure", {}, element("figcaption", { textContent: caption }),
    lineChart(`${caption}. ${text}`, { lines, x: [draws[0], Math.max(draws.at(-1), draws[0] + 1)], y: [Math.min(1, ...worst), top], limit }),
    element("p", { className: "note", textContent: text }));
}

function drawProgress({ kind, trace, agreement }) {
  byId("traces").replaceChildren(...(trace.values.some((own) => own.length > 1) ? [traceChart(kind, trace)] : []), ...(agreement ? [agreementChart(agreement)] : []));
}

let followed = ""; // the run that was started last, until another is chosen
const ofProgress = () => ([...byId("run").options].some((one) => one.value === followed) ? followed : byId("run").value);

async function showProgress() {
  const run = ofProgress();
  if (!run) return;
  byId("progress-run").textContent = run;
  const shown = await ask("progress", { run });
  byId("progress").textContent = shown.lines.join("\n");
  byId("left").textContent = shown.left;
  byId("resume").hidden = shown.complete || Boolean(shown.left);
  byId("show").hidden = !shown.draws;
  drawProgress(shown);
}

async function showEstimate() {
  byId("estimated").textContent = "";
  const found = await ask("estimate", { files: tickedFiles(), quick: isQuick(), on: engineSettings(), ...settings() }, "making short runs …");
  byId("estimated").textContent = found.text;
}

document.addEventListener("DOMContentLoaded", () => {
  byId("estimate").onclick = () => guarded(showEstimate);
  const clear = () => { byId("estimated").textContent = ""; }; // the estimate was of other settings
  for (const id of ["files", "channels"]) byId(id).addEventListener("change", clear);
  for (const radio of document.querySelectorAll("[name=quality]")) radio.addEventListener("change", clear);
  for (const id of ["backend", "threads", "devices"]) byId(id).addEventListener("change", clear);
  byId("backend").addEventListener("change", () => {
    byId("threads-of").hidden = byId("backend").value !== "cpu";
    byId("devices-of").hidden = byId("backend").value !== "cuda";
  });
  byId("fit").addEventListener("submit", clear);
});
