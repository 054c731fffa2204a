"use strict";
// Data files of the folder, runs, and the commands that were started from the page.

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

const marks = { steady: "✓", unsure: "?", drift: "!", steps: "!", "not judged": "–" };

// The verdict of dpmix drift at a glance, its report, and a button to judge.
function recording(file) {
  const { name, verdict } = file;
  const judge = element("button", { type: "button", textContent: verdict ? "Again" : "Judge", ariaLabel: `judge the recording of ${name}`, onclick: () => started(() => ask("judge_recording", { file: name })) });
  if (!verdict) return [judge];
  const word = element("strong", { className: `verdict ${verdict.verdict.replace(" ", "-")}`, textContent: `${marks[verdict.verdict]} ${verdict.verdict}` });
  const link = element("a", { href: `report?file=${encodeURIComponent(name)}`, target: "_blank", rel: "noopener", textContent: "report", ariaLabel: `report on the recording of ${name}` });
  return [word, ...(verdict.text ? [element("div", { className: "phenotype", textContent: verdict.text })] : []), element("div", {}, ...(verdict.report ? [link, " "] : []), judge)];
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
      element("td", { className: "recording" }, ...(file.problem ? [] : recording(file))),
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

// When a command has ended; ticks and channels stay.
async function showVerdicts() {
  const found = new Map((await ask("files", {}, "reading the files …")).map((file) => [file.name, file]));
  for (const row of byId("files").children) {
    const file = found.get(row.querySelector(".file").value), cell = row.querySelector(".recording");
    if (file && !file.problem) cell.replaceChildren(...recording(file));
  }
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
        if (byId("begin").open && before !== active) await showVerdicts();
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
