/** Draws the map with WebGL 2: areas, lines, trails, agents, circles, text. Agents glide in the vertex shader, so a frame
 * without news costs a few calls, however many agents there are. */

import type { Bounds, Camera } from "./camera";
import { SHARES, type Clusters } from "./clusters";
import { rgba } from "./colours";
import { CLUSTERED, PICKED, POINTED, SELECTED, SHOWN, STOPPED, STRIDE, type Positions } from "./frames";
import type { Shape } from "./geojson";
import { Glyphs } from "./text";

type Colour = [number, number, number, number];
const PALETTE_MAX = 48;
/** With the origin so many pixels away, 24 bits still place a dot to a hundredth of a pixel. */
const ORIGIN_PIXELS_MAX = 100_000;
const BASE_MS_MAX = 600_000;

export interface Theme {
  ground: Colour;
  grid: Colour;
  line: Colour;
  area: Colour;
  text: Colour;
  halo: Colour;
  select: Colour;
  pick: Colour;
  /** Of what is stopped. */
  bad: Colour;
  circle: Colour;
  palette: string[];
  /** Of agents without a colour. */
  plain: string;
}

export interface Label {
  text: string;
  x: number;
  y: number;
  /** Pixels beside the place. */
  left: number;
  top: number;
  align: 0 | 0.5;
  isQuiet?: boolean;
}

/** Left, top, right and bottom on the screen. */
export type Box = [number, number, number, number];
const LETTER_PIXELS = 12;

const PLACE = `
uniform vec2 u_centre; uniform vec2 u_scale;
vec4 place(vec2 world) { return vec4((world - u_centre) * u_scale, 0.0, 1.0); }`;

const AGENTS = [
  `#version 300 es
layout(location=0) in vec2 a_from; layout(location=1) in vec2 a_to; layout(location=2) in vec2 a_timing;
layout(location=3) in uvec4 a_look;
uniform float u_now; uniform float u_size; uniform vec4 u_palette[${PALETTE_MAX}];
${PLACE}
out vec4 v_colour; out vec2 v_turn; flat out uint v_flags; out float v_pixels;
void main() {
  uint flags = a_look.z;
  v_flags = flags;
  if ((flags & ${SHOWN}u) == 0u || u_palette[min(a_look.y, ${PALETTE_MAX - 1}u)].a == 0.0
      || ((flags & ${CLUSTERED}u) != 0u && (flags & ${SELECTED | PICKED | STOPPED}u) == 0u)) {
    gl_Position = vec4(2.0, 2.0, 2.0, 1.0); gl_PointSize = 0.0; return;
  }
  float share = a_timing.y > 0.0 ? clamp((u_now - a_timing.x) / a_timing.y, 0.0, 1.0) : 1.0;
  gl_Position = place(mix(a_from, a_to, share));
  float angle = float(a_look.x) * ${(Math.PI * 2) / 256};
  v_turn = vec2(cos(angle), sin(angle));
  v_colour = u_palette[min(a_look.y, ${PALETTE_MAX - 1}u)];
  bool isMarked = (flags & ${SELECTED | PICKED | STOPPED}u) != 0u;
  v_pixels = u_size * (isMarked ? 2.6 : 1.0);
  gl_PointSize = v_pixels;
}`,
  `#version 300 es
precision mediump float;
in vec4 v_colour; in vec2 v_turn; flat in uint v_flags; in float v_pixels;
uniform vec4 u_halo; uniform vec4 u_select; uniform vec4 u_pick; uniform vec4 u_bad;
out vec4 colour;
void main() {
  bool isStopped = (v_flags & ${STOPPED}u) != 0u, isChosen = (v_flags & ${SELECTED | PICKED}u) != 0u;
  bool isMarked = isStopped || isChosen;
  vec2 p = (gl_PointCoord - 0.5) * 2.0;
  float edge = 2.0 / v_pixels;
  float ring = length(p);
  if (isMarked) p *= 2.6 * 0.72;
  float body;
  if ((v_flags & ${POINTED}u) != 0u) {
    float along = p.x * v_turn.y - p.y * v_turn.x, across = abs(p.x * v_turn.x + p.y * v_turn.y);
    float sides = (0.95 - along) * 0.343 - across * 0.939;
    float notch = (along + 0.40 + across * 0.56) * 0.873;
    body = min(sides, notch);
  } else {
    body = 0.72 - length(p);
  }
  float grow = isMarked ? edge * 1.9 : edge;
  float fill = smoothstep(-grow * 0.5, grow * 0.5, body);
  float halo = smoothstep(-grow * 2.0, -grow, body);
  colour = mix(vec4(u_halo.rgb, u_halo.a * halo), vec4(v_colour.rgb, 1.0), fill);
  if (isStopped) { // A cross through it.
    float bar = min(abs(p.x - p.y), abs(p.x + p.y)) * 0.707;
    float near = max(abs(p.x), abs(p.y));
    float cross = smoothstep(grow * 2.6, grow * 1.6, bar) * smoothstep(1.25, 1.15, near);
    colour = mix(colour, vec4(u_bad.rgb, 1.0), cross);
  }
  if (isChosen) {
    vec4 mark = (v_flags & ${SELECTED}u) != 0u ? u_select : u_pick;
    float band = smoothstep(edge * 2.2, edge * 1.2, abs(ring - 1.0 + edge * 2.4));
    colour = mix(colour, vec4(mark.rgb, 1.0), band);
  }
  if (colour.a < 0.01) discard;
}`,
];

const LINES = [
  `#version 300 es
layout(location=0) in vec2 a_place; layout(location=1) in vec4 a_colour;
${PLACE}
out vec4 v_colour;
void main() { gl_Position = place(a_place); v_colour = a_colour; }`,
  `#version 300 es
precision mediump float;
in vec4 v_colour; out vec4 colour;
void main() { colour = v_colour; }`,
];

const CIRCLES = [
  `#version 300 es
layout(location=0) in vec2 a_place; layout(location=1) in float a_pixels;
layout(location=2) in vec4 a_shares; layout(location=3) in vec4 a_more;
${PLACE}
out float v_pixels; out vec4 v_shares; out vec4 v_more;
void main() { gl_Position = place(a_place); gl_PointSize = v_pixels = a_pixels; v_shares = a_shares; v_more = a_more; }`,
  `#version 300 es
precision mediump float;
in float v_pixels; in vec4 v_shares; in vec4 v_more;
uniform vec4 u_palette[${PALETTE_MAX}]; uniform vec4 u_circle;
out vec4 colour;
void main() {
  vec2 p = (gl_PointCoord - 0.5) * 2.0;
  float r = length(p), edge = 2.0 / v_pixels;
  float turn = atan(p.x, -p.y) / 6.2831853; if (turn < 0.0) turn += 1.0;
  vec4 band = u_palette[0];
  float sum = 0.0;
  float shares[8] = float[8](v_shares.x, v_shares.y, v_shares.z, v_shares.w, v_more.x, v_more.y, v_more.z, v_more.w);
  for (int k = 0; k < 8; k++) { if (turn >= sum) band = u_palette[k]; sum += shares[k]; }
  float inner = 1.0 - 8.0 / v_pixels;
  colour = mix(u_circle, vec4(band.rgb, 1.0), smoothstep(inner - edge, inner + edge, r));
  colour.a *= smoothstep(1.0, 1.0 - edge * 2.0, r);
  if (colour.a < 0.01) discard;
}`,
];

const LETTERS = [
  `#version 300 es
layout(location=0) in vec2 a_place; layout(location=1) in vec2 a_glyph; layout(location=2) in vec3 a_colour;
uniform vec2 u_screen;
out vec2 v_glyph; out vec3 v_colour;
void main() { gl_Position = vec4(a_place / u_screen * vec2(2.0, -2.0) + vec2(-1.0, 1.0), 0.0, 1.0); v_glyph = a_glyph; v_colour = a_colour; }`,
  `#version 300 es
precision mediump float;
in vec2 v_glyph; in vec3 v_colour; uniform sampler2D u_glyphs; uniform vec4 u_halo;
out vec4 colour;
void main() {
  vec4 found = texture(u_glyphs, v_glyph);
  float letter = found.a > 0.0 ? found.g / found.a : 0.0;
  colour = vec4(mix(u_halo.rgb, v_colour, letter), found.a * mix(0.8, 1.0, letter));
  if (colour.a < 0.01) discard;
}`,
];

class Program {
  readonly program: WebGLProgram;
  private places = new Map<string, WebGLUniformLocation | null>();

  constructor(private gl: WebGL2RenderingContext, [vertex, fragment]: string[]) {
    this.program = gl.createProgram()!;
    for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]] as const) {
      const shader = gl.createShader(kind)!;
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(this.program, shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS) && !gl.isContextLost()) {
        throw new Error(`a shader does not compile: ${gl.getShaderInfoLog(shader)}`);
      }
    }
    gl.linkProgram(this.program);
  }

  at(name: string): WebGLUniformLocation | null {
    if (!this.places.has(name)) this.places.set(name, this.gl.getUniformLocation(this.program, name));
    return this.places.get(name)!;
  }
}

export class Drawing {
  private gl: WebGL2RenderingContext;
  private agents: Program;
  private lines: Program;
  private circles: Program;
  private letters: Program;
  private agentBuffer: WebGLBuffer;
  private lineBuffer: WebGLBuffer;
  private circleBuffer: WebGLBuffer;
  private letterBuffer: WebGLBuffer;
  private layerBuffer: WebGLBuffer;
  private trailBuffer: WebGLBuffer;
  private trailX = 0;
  private trailY = 0;
  private trailCount = 0;
  private glyphs: Glyphs;
  private palette = new Float32Array(PALETTE_MAX * 4);
  private shapeColours = new Map<string, Colour>();
  private layers: Shape[] | null = null;
  private layerX = 0;
  private layerY = 0;
  private areas: { bounds: Bounds; fans: [number, number][]; cover: number }[] = [];
  private outlines: [number, number] = [0, 0];
  private seen = -1;
  private room = 0;
  theme!: Theme;

  /** Throws where there is no WebGL 2. */
  constructor(private canvas: HTMLCanvasElement) {
    const gl = canvas.getContext("webgl2", { stencil: true, antialias: false, alpha: false });
    if (!gl) throw new Error("this browser has no WebGL 2");
    this.gl = gl;
    this.agents = new Program(gl, AGENTS);
    this.lines = new Program(gl, LINES);
    this.circles = new Program(gl, CIRCLES);
    this.letters = new Program(gl, LETTERS);
    this.agentBuffer = gl.createBuffer()!;
    this.lineBuffer = gl.createBuffer()!;
    this.circleBuffer = gl.createBuffer()!;
    this.letterBuffer = gl.createBuffer()!;
    this.layerBuffer = gl.createBuffer()!;
    this.trailBuffer = gl.createBuffer()!;
    this.glyphs = new Glyphs(gl, Math.min(2, Math.ceil(devicePixelRatio)));
    gl.enable(gl.BLEND);
    gl.blendFuncSeparate(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA, gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  setTheme(theme: Theme, hidden: ReadonlySet<number>): void {
    this.theme = theme;
    this.shapeColours.clear();
    this.layers = null;
    for (let k = 0; k < PALETTE_MAX; k++) {
      const colour = k < PALETTE_MAX - 1 ? theme.palette[k] : undefined; // The last one is for agents without a colour.
      this.palette.set(rgba(colour ?? theme.plain, hidden.has(k) ? 0 : 1), k * 4);
    }
  }

  /** Begins a frame: the ground, and the grid. */
  begin(camera: Camera, positions: Positions, now_ms: number): void {
    const { gl, canvas, theme } = this;
    const ratio = devicePixelRatio;
    const width = Math.round(camera.width * ratio), height = Math.round(camera.height * ratio);
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const away = Math.hypot(camera.x - positions.originX, camera.y - positions.originY) * camera.scale;
    if (away > ORIGIN_PIXELS_MAX || now_ms - positions.base_ms > BASE_MS_MAX) {
      positions.rebase(camera.x, camera.y, now_ms);
    }
    gl.viewport(0, 0, width, height);
    gl.clearColor(...theme.ground);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.STENCIL_BUFFER_BIT);
  }

  grid(camera: Camera): void {
    const step = camera.gridStep(), { minX, maxX, minY, maxY } = camera.bounds;
    const vertices: number[] = [];
    for (let x = Math.ceil(minX / step) * step; x < maxX; x += step) this.segment(vertices, camera.x, camera.y, x, minY, x, maxY, this.theme.grid);
    for (let y = Math.ceil(minY / step) * step; y < maxY; y += step) this.segment(vertices, camera.x, camera.y, minX, y, maxX, y, this.theme.grid);
    this.strokes(camera, vertices);
  }

  /** Areas are filled by the stencil: odd coverage is inside, so holes and hollows need no triangulation. */
  shapes(camera: Camera, shapes: Shape[]): void {
    const { gl } = this, view = camera.bounds;
    const away = Math.hypot(camera.x - this.layerX, camera.y - this.layerY) * camera.scale;
    if (shapes !== this.layers || away > ORIGIN_PIXELS_MAX) this.build(camera, shapes);
    this.bindLines(this.layerBuffer, camera, this.layerX, this.layerY);
    for (const { bounds, fans, cover } of this.areas) {
      if (bounds.minX > view.maxX || bounds.maxX < view.minX || bounds.minY > view.maxY || bounds.maxY < view.minY) continue;
      gl.enable(gl.STENCIL_TEST);
      gl.colorMask(false, false, false, false);
      gl.stencilFunc(gl.ALWAYS, 0, 1);
      gl.stencilOp(gl.KEEP, gl.KEEP, gl.INVERT);
      for (const [first, count] of fans) gl.drawArrays(gl.TRIANGLE_FAN, first, count);
      gl.colorMask(true, true, true, true);
      gl.stencilFunc(gl.EQUAL, 1, 1);
      gl.stencilOp(gl.ZERO, gl.ZERO, gl.ZERO);
      gl.drawArrays(gl.TRIANGLE_FAN, cover, 4);
      gl.disable(gl.STENCIL_TEST);
    }
    gl.drawArrays(gl.LINES, this.outlines[0], this.outlines[1]);
    const crosses: number[] = [], arm = 5 / camera.scale;
    for (const shape of shapes) {
      for (const [x, y] of shape.points) {
        const [line] = this.coloursOf(shape);
        this.segment(crosses, camera.x, camera.y, x - arm, y, x + arm, y, line);
        this.segment(crosses, camera.x, camera.y, x, y - arm, x, y + arm, line);
      }
    }
    this.strokes(camera, crosses);
  }

  /** Layers stay on the GPU, relative to where the camera was; a frame does not touch their vertices. */
  private build(camera: Camera, shapes: Shape[]): void {
    const { gl } = this, data: number[] = [], [x, y] = [camera.x, camera.y];
    this.areas = [];
    for (const shape of shapes) {
      if (!shape.isArea) continue;
      const area = this.coloursOf(shape)[1], { minX, maxX, minY, maxY } = shape.bounds;
      const add = (points: ArrayLike<number>): [number, number] => {
        const first = data.length / 6;
        for (let i = 0; i < points.length; i += 2) data.push(points[i] - x, points[i + 1] - y, ...area);
        return [first, points.length / 2];
      };
      const cover = add([minX, minY, maxX, minY, maxX, maxY, minX, maxY])[0];
      this.areas.push({ bounds: shape.bounds, fans: shape.lines.map(add), cover });
    }
    const first = data.length / 6;
    for (const shape of shapes) {
      const [line] = this.coloursOf(shape);
      for (const points of shape.lines) {
        for (let i = 2; i < points.length; i += 2) {
          this.segment(data, x, y, points[i - 2], points[i - 1], points[i], points[i + 1], line);
        }
      }
    }
    this.outlines = [first, data.length / 6 - first];
    [this.layers, this.layerX, this.layerY] = [shapes, x, y];
    gl.bindBuffer(gl.ARRAY_BUFFER, this.layerBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data), gl.STATIC_DRAW);
  }

  /** Takes new trails, each oldest first as x, y, age triples; older parts fade. They stay until the next ones. */
  setTrails(camera: Camera, trails: { points: number[]; colour: number; age_ms_max: number }[]): void {
    const { gl } = this, data: number[] = [];
    [this.trailX, this.trailY] = [camera.x, camera.y];
    for (const { points, colour, age_ms_max } of trails) {
      const [r, g, b] = this.palette.subarray(Math.min(colour, PALETTE_MAX - 1) * 4);
      for (let i = 3; i < points.length; i += 3) {
        for (const k of [i - 3, i]) {
          const alpha = 0.75 * Math.max(0, 1 - points[k + 2] / age_ms_max);
          data.push(points[k] - camera.x, points[k + 1] - camera.y, r, g, b, alpha);
        }
      }
    }
    this.trailCount = data.length / 6;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.trailBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data), gl.DYNAMIC_DRAW);
  }

  trails(camera: Camera): void {
    if (!this.trailCount) return;
    this.bindLines(this.trailBuffer, camera, this.trailX, this.trailY);
    this.gl.drawArrays(this.gl.LINES, 0, this.trailCount);
  }

  points(camera: Camera, positions: Positions, now_ms: number, pixels: number): void {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.agentBuffer);
    const bytes = positions.count * STRIDE;
    if (positions.version !== this.seen) {
      this.seen = positions.version;
      if (positions.small.length > this.room) {
        this.room = positions.small.length;
        gl.bufferData(gl.ARRAY_BUFFER, this.room, gl.DYNAMIC_DRAW);
      }
      gl.bufferSubData(gl.ARRAY_BUFFER, 0, positions.small, 0, bytes);
    }
    this.use(this.agents, camera, positions.originX, positions.originY);
    gl.uniform1f(this.agents.at("u_now"), now_ms - positions.base_ms);
    gl.uniform1f(this.agents.at("u_size"), pixels * devicePixelRatio);
    gl.uniform4fv(this.agents.at("u_palette"), this.palette);
    gl.uniform4fv(this.agents.at("u_halo"), this.theme.halo);
    gl.uniform4fv(this.agents.at("u_select"), this.theme.select);
    gl.uniform4fv(this.agents.at("u_pick"), this.theme.pick);
    gl.uniform4fv(this.agents.at("u_bad"), this.theme.bad);
    for (const [place, offset] of [[0, 0], [1, 8], [2, 16]]) {
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 2, gl.FLOAT, false, STRIDE, offset);
    }
    gl.enableVertexAttribArray(3);
    gl.vertexAttribIPointer(3, 4, gl.UNSIGNED_BYTE, STRIDE, 24);
    gl.drawArrays(gl.POINTS, 0, positions.count);
  }

  clusters(camera: Camera, clusters: Clusters): void {
    const { gl } = this, words = 3 + SHARES;
    if (!clusters.count) return;
    const data = new Float32Array(clusters.count * words);
    for (let i = 0; i < clusters.count; i++) {
      data[i * words] = clusters.x[i] - camera.x;
      data[i * words + 1] = clusters.y[i] - camera.y;
      data[i * words + 2] = circlePixels(clusters.agents[i]) * devicePixelRatio;
      data.set(clusters.shares.subarray(i * SHARES, (i + 1) * SHARES), i * words + 3);
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, this.circleBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STREAM_DRAW);
    this.use(this.circles, camera, camera.x, camera.y);
    gl.uniform4fv(this.circles.at("u_palette"), this.palette);
    gl.uniform4fv(this.circles.at("u_circle"), this.theme.circle);
    for (const [place, size, offset] of [[0, 2, 0], [1, 1, 2], [2, 4, 3], [3, 4, 7]]) {
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, size, gl.FLOAT, false, words * 4, offset * 4);
    }
    gl.drawArrays(gl.POINTS, 0, clusters.count);
  }

  /** Where a label is. */
  boxOf(camera: Camera, { text, x, y, left, top, align }: Label): Box {
    const [sx, sy] = camera.toScreen(x, y), width = this.glyphs.width(text), begin = sx + left - width * align;
    return [begin, sy + top - LETTER_PIXELS / 2, begin + width, sy + top + LETTER_PIXELS / 2];
  }

  labels(camera: Camera, labels: Label[]): void {
    const { gl, theme } = this;
    const data: number[] = [];
    for (const { text, x, y, left, top, align, isQuiet } of labels) {
      const [sx, sy] = camera.toScreen(x, y);
      this.glyphs.add(data, text, sx + left, sy + top, isQuiet ? theme.line : theme.text, align);
    }
    if (!data.length) return;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.letterBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data), gl.STREAM_DRAW);
    gl.useProgram(this.letters.program);
    this.glyphs.bind();
    gl.uniform2f(this.letters.at("u_screen"), camera.width, camera.height);
    gl.uniform4fv(this.letters.at("u_halo"), theme.ground);
    for (const [place, size, offset] of [[0, 2, 0], [1, 2, 8], [2, 3, 16]]) {
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, size, gl.FLOAT, false, 28, offset);
    }
    gl.drawArrays(gl.TRIANGLES, 0, data.length / 7);
  }

  private use(program: Program, camera: Camera, originX: number, originY: number): void {
    const { gl } = this;
    gl.useProgram(program.program);
    gl.uniform2f(program.at("u_centre"), camera.x - originX, camera.y - originY);
    gl.uniform2f(program.at("u_scale"), (2 * camera.scale) / camera.width, (2 * camera.scale) / camera.height);
  }

  /** Lines of vertices x, y (from the camera), r, g, b, a. */
  private strokes(camera: Camera, vertices: number[]): void {
    const { gl } = this;
    if (!vertices.length) return;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.lineBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(vertices), gl.STREAM_DRAW);
    this.bindLines(this.lineBuffer, camera, camera.x, camera.y);
    gl.drawArrays(gl.LINES, 0, vertices.length / 6);
  }

  private bindLines(buffer: WebGLBuffer, camera: Camera, originX: number, originY: number): void {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    this.use(this.lines, camera, originX, originY);
    for (const [place, size, offset] of [[0, 2, 0], [1, 4, 8]]) {
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, size, gl.FLOAT, false, 24, offset);
    }
  }

  private segment(to: number[], x: number, y: number, x1: number, y1: number, x2: number, y2: number, colour: Colour): void {
    to.push(x1 - x, y1 - y, ...colour, x2 - x, y2 - y, ...colour);
  }

  private coloursOf(shape: Shape): [Colour, Colour] {
    if (!shape.colour && shape.shade === undefined) return [this.theme.line, this.theme.area];
    if (!shape.colour) {
      const [r, g, b] = this.palette.subarray(Math.min(shape.shade!, PALETTE_MAX - 1) * 4);
      return [[r, g, b, 0.6], [r, g, b, 0.25]];
    }
    let found = this.shapeColours.get(shape.colour);
    if (!found) this.shapeColours.set(shape.colour, (found = rgba(shape.colour, 0.9)));
    return [found, [found[0], found[1], found[2], 0.12]];
  }
}

/** How wide a circle of so many agents is. */
export function circlePixels(agents: number): number {
  return 26 + 5 * Math.max(-1, Math.min(6, Math.log2(agents / 40)));
}
