/** Puts agents together that would hide each other: a square of the screen with too many becomes one circle. */

import type { Camera } from "./camera";
import { CLUSTERED, SHOWN, STRIDE, type Positions } from "./frames";

/** Squares are half to once as wide as this on the screen. */
export const CELL_PIXELS = 96;
/** A dot needs so many square pixels to be told apart. */
const DOT_PIXELS = 100;
/** Colours told apart in a circle; the ones behind them count as the last. */
export const SHARES = 8;
/** Agents that are no further from each other than this hide each other; looked for up to so many in view. */
export const STACK_PIXELS = 4;
const STACKED_MAX = 2_000;

export interface Clusters {
  count: number;
  /** In world units. */
  x: Float64Array;
  y: Float64Array;
  agents: Uint32Array;
  /** SHARES for each: the share of each colour of the palette. */
  shares: Float32Array;
  /** Whether its agents are at one place, as far as one can see. */
  isStack: Uint8Array;
  /** Agents within the screen. */
  inView: number;
}

/** Bins agents by squares that stay where they are while the camera moves, so that circles do not jump. */
export class Clusterer {
  /** More agents than this in a square are one circle. */
  private agents_max = 0;
  private cells = new Uint32Array(0);
  private cellX = new Float64Array(0);
  private cellY = new Float64Array(0);
  private colours = new Uint32Array(0);
  private cellOf = new Int32Array(0);
  /** 1 for agents that are in one place with others. */
  private stacked = new Uint8Array(0);
  result: Clusters = {
    count: 0, inView: 0,
    x: new Float64Array(0), y: new Float64Array(0), agents: new Uint32Array(0), shares: new Float32Array(0), isStack: new Uint8Array(0),
  };

  /** Sets the CLUSTERED flag of each agent; returns whether one has changed. `isOn`: whether to cluster at all. */
  run(positions: Positions, camera: Camera, hidden: ReadonlySet<number>, isOn: boolean): boolean {
    // Squares double in size, rather than growing with each turn of the wheel.
    const size = 2 ** Math.floor(Math.log2(CELL_PIXELS / camera.scale));
    this.agents_max = Math.ceil((size * camera.scale) ** 2 / DOT_PIXELS);
    const { minX, minY, maxX, maxY } = camera.bounds;
    const firstX = Math.floor(minX / size), firstY = Math.floor(minY / size);
    const columns = Math.floor(maxX / size) - firstX + 1, rows = Math.floor(maxY / size) - firstY + 1;
    this.reserve(columns * rows, positions.count);
    const { cells, cellX, cellY, colours, cellOf } = this;
    cells.fill(0, 0, columns * rows);
    colours.fill(0, 0, columns * rows * SHARES);
    let inView = 0;
    for (let row = 0, at = 26; row < positions.count; row++, at += STRIDE) {
      cellOf[row] = -1;
      if (!(positions.small[at] & SHOWN)) continue;
      if (hidden.size && hidden.has(positions.colour[row])) continue;
      const x = positions.x[row], y = positions.y[row];
      const column = Math.floor(x / size) - firstX, line = Math.floor(y / size) - firstY;
      if (column < 0 || line < 0 || column >= columns || line >= rows) continue;
      const cell = line * columns + column;
      if (!cells[cell]++) cellX[cell] = cellY[cell] = 0;
      cellX[cell] += x;
      cellY[cell] += y;
      colours[cell * SHARES + Math.min(positions.colour[row], SHARES - 1)]++;
      cellOf[row] = cell;
      inView++;
    }
    const stacks = isOn && inView <= STACKED_MAX ? this.stack(positions, camera) : [];
    for (const rows of stacks) for (const row of rows) this.stacked[row] = 1;
    let changed = false;
    for (let row = 0, at = 26; row < positions.count; row++, at += STRIDE) {
      const isClustered = isOn && this.isClustered(row);
      if (isClustered !== ((positions.small[at] & CLUSTERED) !== 0)) {
        positions.small[at] ^= CLUSTERED;
        changed = true;
      }
    }
    this.collect(columns * rows, isOn);
    for (const rows of stacks) this.add(positions, rows);
    this.result.inView = inView;
    return changed;
  }

  isClustered(row: number): boolean {
    return this.cellOf[row] >= 0 && (this.stacked[row] === 1 || this.cells[this.cellOf[row]] > this.agents_max);
  }

  /** Agents in view that are at one place and not in a circle already: their rows, by places. */
  private stack(positions: Positions, camera: Camera): number[][] {
    const size = STACK_PIXELS / camera.scale, places = new Map<string, number[]>();
    for (let row = 0; row < positions.count; row++) {
      if (this.cellOf[row] < 0 || this.cells[this.cellOf[row]] > this.agents_max) continue;
      const key = `${Math.round(positions.x[row] / size)} ${Math.round(positions.y[row] / size)}`;
      const rows = places.get(key);
      if (rows) rows.push(row);
      else places.set(key, [row]);
    }
    return [...places.values()].filter((rows) => rows.length > 1);
  }

  private add(positions: Positions, rows: number[]): void {
    const { result } = this, to = result.count++;
    result.x[to] = rows.reduce((sum, row) => sum + positions.x[row], 0) / rows.length;
    result.y[to] = rows.reduce((sum, row) => sum + positions.y[row], 0) / rows.length;
    result.agents[to] = rows.length;
    result.isStack[to] = 1;
    result.shares.fill(0, to * SHARES, (to + 1) * SHARES);
    for (const row of rows) result.shares[to * SHARES + Math.min(positions.colour[row], SHARES - 1)] += 1 / rows.length;
  }

  private collect(count: number, isOn: boolean): void {
    const { cells, result } = this;
    result.count = 0;
    for (let cell = 0; isOn && cell < count; cell++) {
      if (cells[cell] <= this.agents_max) continue;
      const to = result.count++;
      result.x[to] = this.cellX[cell] / cells[cell];
      result.y[to] = this.cellY[cell] / cells[cell];
      result.agents[to] = cells[cell];
      result.isStack[to] = 0;
      for (let k = 0; k < SHARES; k++) result.shares[to * SHARES + k] = this.colours[cell * SHARES + k] / cells[cell];
    }
  }

  private reserve(cells: number, agents: number): void {
    if (this.cellOf.length < agents) {
      this.cellOf = new Int32Array(agents * 2);
      this.stacked = new Uint8Array(agents * 2);
    }
    this.stacked.fill(0, 0, agents);
    if (this.cells.length >= cells) return;
    this.cells = new Uint32Array(cells);
    this.cellX = new Float64Array(cells);
    this.cellY = new Float64Array(cells);
    this.colours = new Uint32Array(cells * SHARES);
    const room = cells + STACKED_MAX / 2;
    this.result.x = new Float64Array(room);
    this.result.y = new Float64Array(room);
    this.result.agents = new Uint32Array(room);
    this.result.isStack = new Uint8Array(room);
    this.result.shares = new Float32Array(room * SHARES);
  }
}
