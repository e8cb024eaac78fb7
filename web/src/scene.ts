/** The map's scene: takes the table of positions, the layers and what the user does, and draws a frame when there is
 * something new. Knows nothing of the page around it. */

import { Camera, extend, NOWHERE, type Bounds } from "./camera";
import { Clusterer, STACK_PIXELS } from "./clusters";
import { circlePixels, Drawing, type Box, type Label, type Theme } from "./draw";
import type { Feed } from "./feed";
import { PICKED, SELECTED, STOPPED, type Positions } from "./frames";
import type { Shape } from "./geojson";
import type { Page } from "./types";

const NAMES_MAX = 60, TRAILS_MAX = 150, CLUSTER_LABELS_MAX = 250, SHAPE_LABELS_MAX = 40;
const TOUCH_PIXELS = 14, ICON_PIXELS = 6;
/** How long agents may still glide after the last news. */
const GLIDE_MS_MAX = 1_300;
const SAMPLES = 600;
const STACK_MAX = 1_000;

export class Scene {
  readonly camera: Camera;
  readonly positions: Positions;
  /** Of the last frames: script time, with the news that came before each, and the time since the frame before. */
  readonly script_ms: number[] = [];
  readonly frame_ms: number[] = [];
  /** The layers, and above them what agents draw. */
  shapes: Shape[] = [];
  clusterer = new Clusterer();
  isClustering = true;
  follows = false;
  selected: string | null = null;
  onDrawn = () => {};
  private layers: Shape[] = [];
  private drawn: ReadonlyMap<number, Shape[]> = new Map();
  private isCombined = true;
  private drawing: Drawing | null = null;
  private theme: Theme | null = null;
  private hidden: ReadonlySet<number> = new Set();
  private trail_s: number[];
  private nearRows: number[] = [];
  private picked: number[] = [];
  private stopped = new Set<number>();
  private seenVersion = -1;
  private seenCamera = "";
  private news_ms = 0;
  private isDirty = true;
  /** So many agents were shown when all were last put into view. */
  private fitted = 0;
  private timer = 0;
  private last_ms = 0;

  constructor(private canvas: HTMLCanvasElement, page: Page, readonly feed: Feed, plane: "geo" | "xy") {
    this.camera = new Camera(plane);
    this.positions = feed.positions;
    const mapped = page.kinds.flatMap((kind) => (kind.map ? [kind.map] : []));
    this.trail_s = mapped.map((one) => one.trail_s);
    this.drawing = new Drawing(canvas);
    canvas.addEventListener("webglcontextlost", this.lose);
    canvas.addEventListener("webglcontextrestored", this.restore);
    this.timer = requestAnimationFrame(this.frame);
  }

  end(): void {
    cancelAnimationFrame(this.timer);
    this.canvas.removeEventListener("webglcontextlost", this.lose);
    this.canvas.removeEventListener("webglcontextrestored", this.restore);
  }

  setTheme(theme: Theme, hidden: ReadonlySet<number>): void {
    this.theme = theme;
    this.hidden = hidden;
    this.drawing?.setTheme(theme, hidden);
    this.isCombined = false;
    this.isDirty = true;
  }

  /** Takes the layers, and what agents draw, by their rows. */
  setShapes(layers: Shape[], drawn: ReadonlyMap<number, Shape[]>): void {
    [this.layers, this.drawn, this.isCombined] = [layers, drawn, false];
    this.isDirty = true;
  }

  resize(width: number, height: number): void {
    this.camera.width = Math.max(1, width);
    this.camera.height = Math.max(1, height);
    this.isDirty = true;
  }

  redraw(): void {
    this.isDirty = true;
  }

  select(name: string | null, picked: string[]): void {
    const mark = (row: number | undefined, flag: number, on: boolean) => row !== undefined && this.positions.flag(row, flag, on);
    mark(this.positions.rows.get(this.selected ?? ""), SELECTED, false);
    this.selected = name;
    mark(this.positions.rows.get(name ?? ""), SELECTED, true);
    for (const row of this.picked) mark(row, PICKED, false);
    this.picked = picked.flatMap((one) => this.positions.rows.get(one) ?? []);
    for (const row of this.picked) mark(row, PICKED, true);
    this.positions.version++;
    this.isDirty = true;
  }

  /** Marks the agents that are stopped. */
  markStopped(names: string[]): void {
    const rows = new Set(names.flatMap((one) => this.positions.rows.get(one) ?? []));
    if (rows.size === this.stopped.size && [...rows].every((row) => this.stopped.has(row))) return;
    for (const row of this.stopped) this.positions.flag(row, STOPPED, false);
    for (const row of rows) this.positions.flag(row, STOPPED, true);
    this.stopped = rows;
    this.positions.version++;
    this.isDirty = true;
  }

  /** Shows all agents; without one, all layers. */
  fit(): void {
    this.camera.fit(this.extent());
    this.isDirty = true;
  }

  /** Moves to an agent. */
  centre(name: string): void {
    const row = this.positions.rows.get(name);
    if (row === undefined || !this.positions.isShown(row)) return;
    const { camera } = this, reach = 40;
    camera.isMoved = true;
    [camera.x, camera.y] = this.positions.drawnAt(row, performance.now());
    // Close enough that it stands alone.
    for (let tries = 0; tries < 24; tries++) {
      const [minX, maxY] = camera.toWorld(camera.width / 2 - reach, camera.height / 2 - reach);
      const [maxX, minY] = camera.toWorld(camera.width / 2 + reach, camera.height / 2 + reach);
      if (this.agentsIn({ minX, maxX, minY, maxY }, 11).length < 11) break;
      camera.zoom(1.5);
    }
    this.isDirty = true;
  }

  /** The agent under a point of the screen. */
  agentAt(left: number, top: number): string | null {
    const now_ms = performance.now(), reach = TOUCH_PIXELS / this.camera.scale;
    const [x, y] = this.camera.toWorld(left, top);
    let best = reach, found: string | null = null;
    for (let row = 0; row < this.positions.count; row++) {
      if (Math.abs(this.positions.x[row] - x) > 20 * reach || !this.isVisible(row)) continue;
      const [atX, atY] = this.positions.drawnAt(row, now_ms);
      const distance = Math.hypot(atX - x, atY - y);
      if (distance < best) [best, found] = [distance, this.positions.names[row]];
    }
    return found;
  }

  /** Zooms to the circle under a point, if there is one. Agents that are at the same place are returned: no zoom tells
   * them apart. */
  openCluster(left: number, top: number): boolean | string[] {
    const { count, x, y, agents, isStack } = this.clusterer.result;
    for (let i = 0; i < count; i++) {
      const [atLeft, atTop] = this.camera.toScreen(x[i], y[i]);
      if (Math.hypot(atLeft - left, atTop - top) > circlePixels(agents[i]) / 2) continue;
      if (isStack[i]) {
        const reach = STACK_PIXELS / this.camera.scale;
        const found = this.agentsIn({ minX: x[i] - reach, maxX: x[i] + reach, minY: y[i] - reach, maxY: y[i] + reach }, STACK_MAX);
        if (found.length > 1) return found;
      }
      this.camera.zoom(2.5, atLeft, atTop);
      this.isDirty = true;
      return true;
    }
    return false;
  }

  agentsIn(box: Bounds, count_max = Infinity): string[] {
    const found: string[] = [];
    for (let row = 0; row < this.positions.count && found.length < count_max; row++) {
      const x = this.positions.x[row], y = this.positions.y[row];
      if (x < box.minX || x > box.maxX || y < box.minY || y > box.maxY) continue;
      if (this.isCounted(row)) found.push(this.positions.names[row]);
    }
    return found;
  }

  /** How many agents have each colour. */
  countColours(): number[] {
    const counts: number[] = [];
    for (let row = 0; row < this.positions.count; row++) {
      const colour = this.positions.colour[row];
      if (this.positions.isShown(row)) counts[colour] = (counts[colour] ?? 0) + 1;
    }
    return counts;
  }

  /** Where an agent is on the screen; null if it is not on the map. */
  screenOf(name: string): [number, number] | null {
    const row = this.positions.rows.get(name);
    if (row === undefined || !this.positions.isShown(row)) return null;
    return this.camera.toScreen(...this.positions.drawnAt(row, performance.now()));
  }

  private lose = (event: Event) => {
    event.preventDefault();
    this.drawing = null;
  };

  private restore = () => {
    this.drawing = new Drawing(this.canvas);
    if (this.theme) this.drawing.setTheme(this.theme, this.hidden);
    this.isDirty = true;
  };

  private isCounted(row: number): boolean {
    return this.positions.isShown(row) && !this.hidden.has(this.positions.colour[row]);
  }

  private isVisible(row: number): boolean {
    return this.isCounted(row) && !(this.isClustering && this.clusterer.isClustered(row));
  }

  private extent(): Bounds {
    const rows = [...this.positions.names.keys()].filter((row) => this.isCounted(row));
    if (!rows.length) {
      const parts = this.shapes.map((one) => one.bounds);
      return parts.reduce((sum, one) => extend(extend(sum, one.minX, one.minY), one.maxX, one.maxY), NOWHERE);
    }
    // A few agents far away, such as those that have not said yet where they are, must not make dots of all others.
    const range = (of: Float64Array): [number, number] => {
      const values = Float64Array.from(rows, (row) => of[row]).sort();
      const edge = Math.floor(values.length * 0.03);
      const inner: [number, number] = [values[edge], values[values.length - 1 - edge]];
      const all: [number, number] = [values[0], values[values.length - 1]];
      return all[1] - all[0] > 4 * (inner[1] - inner[0]) && edge > 0 ? inner : all;
    };
    const [minX, maxX] = range(this.positions.x), [minY, maxY] = range(this.positions.y);
    return { minX, maxX, minY, maxY };
  }

  private frame = (now_ms: number) => {
    this.timer = requestAnimationFrame(this.frame);
    const begin = performance.now();
    const { camera, positions, drawing } = this;
    // Until somebody moves the map, it shows all agents, also those that come after the first.
    if (!camera.isMoved && positions.shown > 1.5 * this.fitted) {
      this.fitted = positions.shown;
      this.fit();
    }
    const row = this.follows && this.selected ? positions.rows.get(this.selected) : undefined;
    if (row !== undefined && positions.isShown(row)) {
      [camera.x, camera.y] = positions.drawnAt(row, begin);
      camera.isMoved = true;
    }
    const view = `${camera.x} ${camera.y} ${camera.scale} ${camera.width} ${camera.height}`;
    const isNews = positions.version !== this.seenVersion, isMoved = view !== this.seenCamera;
    if (isNews) this.news_ms = begin;
    if (isNews || isMoved || this.isDirty) this.arrange(begin);
    this.seenCamera = view;
    if (drawing && this.theme && (isMoved || this.isDirty || begin - this.news_ms < GLIDE_MS_MAX)) {
      this.isDirty = false;
      this.draw(drawing, begin);
      this.note(this.script_ms, performance.now() - begin + this.feed.takeSpent_ms());
      if (this.last_ms) this.note(this.frame_ms, now_ms - this.last_ms);
      this.last_ms = now_ms;
      this.onDrawn();
    } else {
      this.last_ms = 0;
    }
  };

  /** What depends on positions and camera, but not on the moment: circles, names, trails. */
  private arrange(now_ms: number): void {
    const { positions, camera, clusterer } = this;
    this.combine();
    if (clusterer.run(positions, camera, this.hidden, this.isClustering)) positions.version++;
    this.seenVersion = positions.version;
    this.nearRows = [];
    const { minX, maxX, minY, maxY } = camera.bounds;
    if (clusterer.result.inView <= TRAILS_MAX) {
      for (let row = 0; row < positions.count; row++) {
        const x = positions.x[row], y = positions.y[row];
        if (x > minX && x < maxX && y > minY && y < maxY && this.isVisible(row)) this.nearRows.push(row);
      }
    }
    const marked = this.selected ? positions.rows.get(this.selected) : undefined;
    const trailing = [...this.nearRows, ...this.picked, ...(marked === undefined ? [] : [marked])];
    this.drawing?.setTrails(camera, trailing.slice(0, 2 * TRAILS_MAX).flatMap((row) => {
      const age_ms_max = (this.trail_s[positions.kind[row]] ?? 0) * 1000;
      if (!age_ms_max || !positions.isShown(row)) return [];
      return [{ points: positions.trail(row, now_ms, age_ms_max), colour: positions.colour[row], age_ms_max }];
    }));
  }

  /** What an agent draws has its colour, and is hidden with it. */
  private combine(): void {
    for (const [row, shapes] of this.drawn) {
      const shade = this.positions.isShown(row) ? this.positions.colour[row] : undefined;
      if (shapes[0].shade === shade) continue;
      for (const shape of shapes) shape.shade = shade;
      this.isCombined = false;
    }
    if (this.isCombined) return;
    this.isCombined = true;
    const drawn = [...this.drawn.values()].flat();
    this.shapes = [...this.layers, ...drawn.filter(({ shade }) => shade === undefined || !this.hidden.has(shade))];
  }

  private draw(drawing: Drawing, now_ms: number): void {
    const { camera, positions, clusterer } = this;
    const inView = clusterer.result.inView;
    const agents = this.agentLabels(drawing, now_ms), taken = agents.map((one) => drawing.boxOf(camera, one));
    drawing.begin(camera, positions, now_ms);
    drawing.grid(camera);
    drawing.shapes(camera, this.shapes);
    drawing.labels(camera, this.shapeLabels().filter((one) => isFree(drawing.boxOf(camera, one), taken)));
    drawing.trails(camera);
    drawing.points(camera, positions, now_ms, inView > 3000 ? 9 : inView > 400 ? 12 : 17);
    drawing.clusters(camera, clusterer.result);
    drawing.labels(camera, agents);
  }

  private shapeLabels(): Label[] {
    const { camera } = this, view = camera.bounds;
    const labels: Label[] = [];
    // What agents draw has its text where agents have their names: not if there are many of them.
    const isNear = this.clusterer.result.inView <= TRAILS_MAX;
    for (const shape of isNear ? this.shapes : this.shapes.slice(0, this.layers.length)) {
      const { minX, maxX, minY, maxY } = shape.bounds;
      const extent = shape.isArea ? maxX - minX : Math.max(maxX - minX, maxY - minY);
      const isWide = extent * camera.scale > 60 || shape.points.length > 0;
      if (!shape.name || !isWide || labels.length >= SHAPE_LABELS_MAX) continue;
      if (minX > view.maxX || maxX < view.minX || minY > view.maxY || maxY < view.minY) continue;
      const ring = shape.lines[0], middle = ring ? Math.floor(ring.length / 4) * 2 : 0;
      const [x, y] = shape.isArea || !ring ? [(minX + maxX) / 2, (minY + maxY) / 2] : [ring[middle], ring[middle + 1]];
      labels.push({ text: shape.name, x, y, left: 0, top: shape.isArea ? 0 : -10, align: 0.5, isQuiet: true });
    }
    return labels;
  }

  /** Of the circles and, where few agents are in view, of those whose names hide nobody. */
  private agentLabels(drawing: Drawing, now_ms: number): Label[] {
    const { camera, positions, clusterer } = this;
    const labels: Label[] = [];
    const { count, x, y, agents } = clusterer.result;
    for (let i = 0; i < Math.min(count, CLUSTER_LABELS_MAX); i++) {
      labels.push({ text: short(agents[i]), x: x[i], y: y[i], left: 0, top: 0, align: 0.5 });
    }
    const marked = this.selected ? positions.rows.get(this.selected) : undefined;
    const first = [...(marked === undefined ? [] : [marked]), ...[...this.stopped].slice(0, NAMES_MAX)];
    const named = new Set([...first, ...(this.nearRows.length <= NAMES_MAX ? this.nearRows : [])]);
    const taken: Box[] = this.nearRows.map((row) => {
      const [left, top] = camera.toScreen(...positions.drawnAt(row, now_ms));
      return [left - ICON_PIXELS, top - ICON_PIXELS, left + ICON_PIXELS, top + ICON_PIXELS];
    });
    const rows = [...named].filter((row) => positions.isShown(row)), texts = labelsOf(rows.map((row) => positions.names[row]));
    for (const [place, row] of rows.entries()) {
      const [atX, atY] = positions.drawnAt(row, now_ms), name = texts[place];
      const text = this.stopped.has(row) ? `${name} (stopped)` : name;
      const label: Label = { text, x: atX, y: atY, left: row === marked ? 24 : 12, top: 0, align: 0 };
      if (isFree(drawing.boxOf(camera, label), taken) || first.includes(row)) labels.push(label);
    }
    return labels;
  }

  private note(samples: number[], value: number): void {
    samples.push(value);
    if (samples.length > SAMPLES) samples.shift();
  }
}

/** Takes a place if nothing is there yet. */
function isFree(box: Box, taken: Box[]): boolean {
  const isIn = taken.some((one) => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3]);
  if (!isIn) taken.push(box);
  return !isIn;
}

/** 12345 as 12k. */
export function short(count: number): string {
  return count < 1000 ? String(count) : count < 9950 ? `${(count / 1000).toFixed(1)}k` : `${Math.round(count / 1000)}k`;
}

/** The names of agents without their kinds, where that tells them apart. */
function labelsOf(agents: string[]): string[] {
  const names = agents.map((one) => one.slice(one.indexOf("/") + 1)), counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return names.map((name, place) => (counts.get(name)! > 1 ? agents[place] : name));
}
