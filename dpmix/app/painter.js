"use strict";
// Draws events as points without WebGL, where a browser has none or draws it by software: a million points then take tens of
// milliseconds instead of half a second. It has the methods of PointLayer (dpmix/app/webgl.js), and its pictures differ
// from those by rounding. This file knows nothing of the page.

class PointPainter {
  constructor() {
    this.values = new Map(); // Float32Array of each channel
    this.order = new Uint32Array();
    this.lost = false;
  }

  setValues(channel, values) { this.values.set(channel, values); }

  keepOnly(channels) {
    for (const channel of [...this.values.keys()].filter((one) => !channels.includes(one))) this.values.delete(channel);
  }

  setOrder(order) { this.order = order; }

  // Parameters and result are those of PointLayer.draw.
  draw(width, height, axes, window, limits, groups) {
    const pixels = new Uint32Array(width * height), [across, up] = axes.map((channel) => this.values.get(channel));
    const [[left, right], [bottom, top]] = window, [[leftmost, rightmost], [lowest, highest]] = limits;
    const perX = width / (right - left), perY = height / (top - bottom);
    let at = 0;
    for (const { count, colour: [r, g, b], size } of groups) {
      const colour = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0, marks = pixelsOfMark(size), half = (size - 1) / 2;
      for (const end = at + count; at < end; at++) {
        const event = this.order[at];
        const x = Math.floor((Math.max(leftmost, Math.min(rightmost, across[event])) - left) * perX - half);
        const y = Math.floor((Math.max(lowest, Math.min(highest, up[event])) - bottom) * perY - half);
        for (let k = 0; k < marks.length; k++) {
          const column = x + marks[k][0], row = y + marks[k][1];
          if (column >= 0 && column < width && row >= 0 && row < height) pixels[row * width + column] = colour;
        }
      }
    }
    return pixels;
  }
}

// Places of the pixels of a mark, from its lower left one: a square, or a disc from three pixels on.
function pixelsOfMark(size) {
  const all = Array.from({ length: size * size }, (_, k) => [k % size, Math.floor(k / size)]), middle = (size - 1) / 2;
  return size < 3 ? all : all.filter(([x, y]) => Math.hypot(x - middle, y - middle) <= size / 2);
}
