"use strict";
// The view "Points" of the plots: which events are points (dpmix/app/points.py), in which order and colours. They are asked
// for when a person chooses this view, and then only the channels that are shown; their populations after each decision.

const points = { on: false, layer: null, run: "", count: 0, population: null, view: null, selection: null, chosen: null, groups: null };

const isPoints = () => points.on && !points.layer.lost;
const shownChannels = () => [...new Set(Array.from({ length: plots }, (_, k) => axesOf(k)).flat())];
const areCurrent = () => points.run === state.run && points.view === state.view && points.selection === state.selection &&
  shownChannels().every((channel) => points.layer.values.has(channel));

function startPoints() {
  const layer = new PointLayer(redrawAll, redrawAll);
  points.layer = layer.isFast ? layer : new PointPainter();
  for (const name of ["density", "points"]) byId(`as-${name}`).onchange = () => { points.on = byId("as-points").checked; draw(); };
  points.on = byId("as-points").checked;
}

function redrawAll() {
  points.groups = null;
  if (points.on) draw();
}

function showWhich() {
  const { events, points: many, all_events: all } = state.opened;
  const of = (n) => (n < all ? `${n.toLocaleString("en")} of ${all.toLocaleString("en")} events, evenly spaced` : `all ${all.toLocaleString("en")} events`);
  byId("shown").textContent = points.on && points.layer.lost ? `The browser has taken WebGL away. Until it is back, the plots show the density of ${of(events)}.`
    : points.on ? `Points: ${of(many)}. Small populations are drawn last, on top.` : `Density of ${of(events)}.`;
}

// Ask for what is missing until nothing changes meanwhile, then draw.
let bringing = false;
async function followPoints() {
  if (bringing) return;
  bringing = true;
  try {
    while (isPoints() && state.view && !areCurrent()) await bringPoints();
  } catch (error) {
    if (!error.stale) return fail(error);
    bringing = false;
    return show(await ask("view", { run: state.run })); // another tab has decided
  } finally { bringing = false; }
  draw();
}

async function bringPoints() {
  const { run, view, selection } = state, { layer } = points, text = "bringing the points …";
  if (points.run !== run) {
    layer.keepOnly([]);
    Object.assign(points, { run, count: state.opened.points, population: null, view: null, selection: null, chosen: null });
  }
  const channels = shownChannels().filter((channel) => !layer.values.has(channel));
  layer.keepOnly(shownChannels());
  if (channels.length) {
    const packed = new Float32Array(await ask("point_values", { run, channels }, text));
    if (run !== state.run) return;
    channels.forEach((channel, at) => layer.setValues(channel, packed.slice(at * points.count, (at + 1) * points.count)));
  }
  if (points.view !== view && !(await bringPopulations(run, view, text))) return;
  if (points.selection !== selection) {
    const chosen = selection?.found ? new Uint8Array(await ask("point_found", { run }, text)) : selection && inside(selection, (channel) => layer.values.get(channel));
    if (run !== state.run || selection !== state.selection) return;
    if (selection && !selection.found && !chosen.includes(1)) unselect();
    Object.assign(points, { selection: state.selection, chosen: state.selection && chosen });
  }
  points.groups = null;
}

// Return false if the page shows other populations or another run by now.
async function bringPopulations(run, view, text) {
  try {
    const { revision, action } = view;
    const packed = await ask("point_populations", { run, revision, ...(action ? { action } : {}) }, text);
    if (run !== state.run) return false;
    points.population = packed.byteLength === points.count ? new Uint8Array(packed) : new Uint16Array(packed);
    points.view = view;
    return true;
  } catch (error) {
    if (error.stale && view !== state.view) return false;
    throw error;
  }
}

// Sort the events: those that are not marked first, then populations from the largest to the smallest.
function groupPoints(mark) {
  const { population, count } = points, many = state.view.populations.length;
  const sizes = new Uint32Array(many), counts = new Uint32Array(many + 1);
  for (let i = 0; i < count; i++) {
    sizes[population[i]] += 1;
    counts[mark && !mark[i] ? many : population[i]] += 1;
  }
  const ranked = [many, ...Array.from(sizes.keys()).sort((a, b) => sizes[b] - sizes[a])];
  const next = new Uint32Array(many + 1);
  let first = 0;
  for (const p of ranked) { next[p] = first; first += counts[p]; }
  const order = new Uint32Array(count);
  for (let i = 0; i < count; i++) order[next[mark && !mark[i] ? many : population[i]]++] = i;
  points.layer.setOrder(order);
  points.groups = ranked.map((p) => ({ p, count: counts[p], front: count - counts[many] }));
}

// Return the picture of one plot in its present window, and where it lies.
function pointsImage(k) {
  const figure = models[`pair${k}`], { frame, canvas_view } = views[`pair${k}`], ratio = canvas_view.pixel_ratio;
  const { x_range: x, y_range: y } = figure, axes = axesOf(k), many = state.view.populations.length;
  const [width, height] = [frame.bbox.width, frame.bbox.height].map((side) => Math.max(1, Math.round(side * ratio)));
  const paper = rgb(styled("--paper")), grey = paper.map((part) => part + 0.5 * (128 - part));
  const sizes = (n) => (n > 100000 ? 1 : n > 1000 ? 2 : 4); // few of them have to be seen
  const groups = points.groups.map(({ p, count, front }) => ({
    count, colour: p === many ? grey : rgb(state.view.populations[p].colour),
    size: Math.round(ratio * sizes(p === many ? points.count : front)),
  }));
  const window = [[x.start, x.end], [y.start, y.end]];
  const pixels = points.layer.draw(width, height, axes, window, axes.map(limitsOf), groups);
  return { pixels, shape: [height, width], x: x.start, y: y.start, dw: x.end - x.start, dh: y.end - y.start };
}

// A window that moves or grows: draw its points again, at most once for each picture of the screen.
const moved = new Set();
function redrawMoved(k) {
  if (!isPoints() || !points.view) return;
  if (!moved.size) requestAnimationFrame(() => {
    const which = [...moved];
    moved.clear();
    if (isPoints() && areCurrent()) for (const one of which) drawPair(one, points, null);
  });
  moved.add(k);
}
