"use strict";
// Draws events as points by WebGL 2: each is a small mark at its values in two channels. Groups of events follow each
// other, and later ones lie on top. This file knows nothing of the page.

const pointShaders = {
  VERTEX_SHADER: `#version 300 es
    in float across, up;
    uniform vec2 low, high, scale, offset;
    uniform float size;
    void main() {
      gl_Position = vec4(clamp(vec2(across, up), low, high) * scale + offset, 0.0, 1.0);
      gl_PointSize = size;
    }`,
  FRAGMENT_SHADER: `#version 300 es
    precision highp float;
    uniform vec4 colour;
    uniform float size;
    out vec4 shown;
    void main() {
      if (size > 2.5 && distance(gl_PointCoord, vec2(0.5)) > 0.5) discard;
      shown = colour;
    }`,
};

class PointLayer {
  // `lost` and `restored` are called when the browser takes the context away and gives it back.
  constructor(lost, restored) {
    this.canvas = document.createElement("canvas");
    this.values = new Map(); // Float32Array of each channel
    this.order = new Uint32Array();
    this.lost = false;
    this.canvas.addEventListener("webglcontextlost", (event) => {
      event.preventDefault(); // it may come back
      this.lost = true;
      lost();
    });
    this.canvas.addEventListener("webglcontextrestored", () => {
      this.lost = false;
      this.prepare();
      restored();
    });
    const wanted = { alpha: true, antialias: false, depth: false, stencil: false };
    this.gl = this.canvas.getContext("webgl2", wanted); // null: the browser has none
    if (this.gl) this.prepare();
  }

  // True with a graphics processor; by software, WebGL is slower than dpmix/app/painter.js.
  get isFast() {
    if (!this.gl) return false;
    const names = this.gl.getExtension("WEBGL_debug_renderer_info");
    return !/swiftshader|llvmpipe|software|basic render/i.test(this.gl.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : this.gl.RENDERER));
  }

  // All that a context holds; it is made again after a loss.
  prepare() {
    const { gl } = this, program = gl.createProgram();
    for (const [kind, text] of Object.entries(pointShaders)) {
      const shader = gl.createShader(gl[kind]);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    ["across", "up"].forEach((name, place) => { gl.bindAttribLocation(program, place, name); gl.enableVertexAttribArray(place); });
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) throw new Error(`WebGL: ${gl.getProgramInfoLog(program)}`);
    gl.useProgram(program);
    gl.enable(gl.SCISSOR_TEST);
    this.places = Object.fromEntries(["low", "high", "scale", "offset", "size", "colour"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.buffers = new Map();
    for (const [channel, values] of this.values) this.setValues(channel, values);
    this.indices = gl.createBuffer();
    this.setOrder(this.order);
  }

  setValues(channel, values) {
    const { gl } = this, buffer = gl.createBuffer();
    this.values.set(channel, values);
    this.buffers.set(channel, buffer);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
  }

  // Free the memory of all channels but these.
  keepOnly(channels) {
    for (const channel of [...this.values.keys()].filter((one) => !channels.includes(one))) {
      this.gl.deleteBuffer(this.buffers.get(channel));
      this.buffers.delete(channel);
      this.values.delete(channel);
    }
  }

  // Numbers of the events in the order in which they are drawn.
  setOrder(order) {
    const { gl } = this;
    this.order = order;
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.indices);
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, order, gl.DYNAMIC_DRAW);
  }

  // Return the pixels from bottom to top, uint32 [height * width], transparent where no point is.
  //   axes: two channels; window, limits: [low, high] of each axis, of the picture and of the values, which are moved
  //   inside; groups: { count, colour: [r, g, b] from 0 to 255, size: in pixels }, which share out the order.
  draw(width, height, axes, window, limits, groups) {
    const { gl, canvas, places } = this;
    if (canvas.width < width) canvas.width = width;
    if (canvas.height < height) canvas.height = height;
    gl.viewport(0, 0, width, height);
    gl.scissor(0, 0, width, height);
    gl.clear(gl.COLOR_BUFFER_BIT);
    axes.forEach((channel, place) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers.get(channel));
      gl.vertexAttribPointer(place, 1, gl.FLOAT, false, 0, 0);
    });
    const pair = (name, of) => gl.uniform2f(places[name], of(0), of(1));
    pair("low", (a) => limits[a][0]);
    pair("high", (a) => limits[a][1]);
    pair("scale", (a) => 2 / (window[a][1] - window[a][0]));
    pair("offset", (a) => -(window[a][1] + window[a][0]) / (window[a][1] - window[a][0]));
    let first = 0;
    for (const { count, colour, size } of groups) {
      gl.uniform4f(places.colour, ...colour.map((part) => part / 255), 1);
      gl.uniform1f(places.size, size);
      if (count) gl.drawElements(gl.POINTS, count, gl.UNSIGNED_INT, 4 * first);
      first += count;
    }
    const pixels = new Uint32Array(width * height);
    gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(pixels.buffer));
    return pixels;
  }
}
