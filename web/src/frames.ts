/** Where agents are: the frames of `/v1/map`, and the table that they fill. Pure but for the clock, which is an argument. */

import type { MapDeclaration, Page } from "./types";

const MAGIC = 0x31504d53; // "SMP1"
const HEADER_BYTES = 32;
/** Bytes of an agent on the GPU: from x, y; to x, y; begin and duration of the way between; heading, colour, flags. */
export const STRIDE = 28;
export const SHOWN = 1, CLUSTERED = 2, SELECTED = 4, PICKED = 8, POINTED = 16, STOPPED = 32;
const GLIDE_MS_MIN = 60, GLIDE_MS_MAX = 1_200;
/** A trail has so many points at most; trails are sampled at least this far apart. */
export const TRAIL_POINTS = 32;
const TRAIL_STEP_MS_MIN = 500;

export interface Frame {
  time_ms: number;
  originX: number;
  originY: number;
  number: Uint32Array;
  dx: Float32Array;
  dy: Float32Array;
  heading: Uint8Array;
  colour: Uint8Array;
}

/** Reads a frame without copying it. Throws RangeError for one that is cut off or of another format. */
export function decodeFrame(buffer: ArrayBuffer): Frame {
  const view = new DataView(buffer);
  if (view.getUint32(0, true) !== MAGIC) throw new RangeError("this is no frame of positions");
  const count = view.getUint32(4, true);
  let at = HEADER_BYTES;
  const next = (bytes: number) => (at += bytes) - bytes;
  return {
    time_ms: view.getFloat64(8, true),
    originX: view.getFloat64(16, true),
    originY: view.getFloat64(24, true),
    number: new Uint32Array(buffer, next(4 * count), count),
    dx: new Float32Array(buffer, next(4 * count), count),
    dy: new Float32Array(buffer, next(4 * count), count),
    heading: new Uint8Array(buffer, next(count), count),
    colour: new Uint8Array(buffer, next(count), count),
  };
}

/** Mercator's y in degrees, so that east and north have the same scale on the screen. */
export function mercator(latitude: number): number {
  const bounded = Math.max(-85.05, Math.min(85.05, latitude));
  return (Math.log(Math.tan(Math.PI / 4 + (bounded * Math.PI) / 360)) * 180) / Math.PI;
}

export function latitudeOf(y: number): number {
  return (Math.atan(Math.exp((y * Math.PI) / 180)) * 360) / Math.PI - 90;
}

/** All agents with a position, one row each. Rows are never moved, so that a row can be kept. */
export class Positions {
  names: string[] = [];
  rows = new Map<string, number>();
  kind = new Uint8Array(0);
  /** In world units: degrees of Mercator's projection, or metres. */
  x = new Float64Array(0);
  y = new Float64Array(0);
  /** What the GPU gets, relative to an origin and a time that move along, because it has 24 bits only. */
  bytes = new ArrayBuffer(0);
  floats = new Float32Array(0);
  small = new Uint8Array(0);
  colour = new Uint8Array(0);
  originX = 0;
  originY = 0;
  base_ms = 0;
  /** Grows with each change. */
  version = 0;
  shown = 0;
  private began = new Float64Array(0);
  private trailX = new Float64Array(0);
  private trailY = new Float64Array(0);
  private trailAt = new Float64Array(0);
  private trailNext = new Uint8Array(0);

  /** The mapped kinds, in the order of the server's layers. */
  private layers: MapDeclaration[];

  constructor(page: Page) {
    this.layers = page.kinds.flatMap((kind) => (kind.map ? [kind.map] : []));
  }

  get count(): number {
    return this.names.length;
  }

  /** The row of an agent; a new one if it was never seen. */
  add(name: string, kind: number): number {
    const known = this.rows.get(name);
    if (known !== undefined) return known;
    const row = this.names.length;
    if (row >= this.kind.length) this.grow(Math.max(1024, row * 2));
    this.names.push(name);
    this.rows.set(name, row);
    this.kind[row] = kind;
    return row;
  }

  isShown(row: number): boolean {
    return (this.small[row * STRIDE + 26] & SHOWN) !== 0;
  }

  /** An agent is here now. It glides there from where it is drawn, for as long as its last way took. */
  move(row: number, x: number, y: number, heading: number, colour: number, now_ms: number, glides: boolean): void {
    const declared = this.layers[this.kind[row]] as MapDeclaration | undefined;
    if (declared?.plane === "geo") y = mercator(y);
    const f = (row * STRIDE) >> 2, s = row * STRIDE + 24;
    const wasShown = (this.small[s + 2] & SHOWN) !== 0;
    const duration = now_ms - this.began[row];
    const glide = glides && wasShown && duration < 4 * GLIDE_MS_MAX;
    if (glide) {
      const share = this.floats[f + 5] > 0 ? Math.min(1, duration / this.floats[f + 5]) : 1;
      this.floats[f] += (this.floats[f + 2] - this.floats[f]) * share;
      this.floats[f + 1] += (this.floats[f + 3] - this.floats[f + 1]) * share;
      this.floats[f + 5] = Math.max(GLIDE_MS_MIN, Math.min(GLIDE_MS_MAX, duration));
    } else {
      this.floats[f] = x - this.originX;
      this.floats[f + 1] = y - this.originY;
      this.floats[f + 5] = 0;
    }
    this.floats[f + 2] = x - this.originX;
    this.floats[f + 3] = y - this.originY;
    this.floats[f + 4] = now_ms - this.base_ms;
    this.began[row] = now_ms;
    this.x[row] = x;
    this.y[row] = y;
    this.small[s] = heading;
    this.small[s + 1] = this.colour[row] = colour;
    if (!wasShown) {
      this.shown++;
      this.small[s + 2] |= SHOWN | (declared?.heading ? POINTED : 0);
    }
    const step_ms = Math.max(TRAIL_STEP_MS_MIN, ((declared?.trail_s ?? 0) * 1000) / (TRAIL_POINTS - 1));
    const newest = row * TRAIL_POINTS + ((this.trailNext[row] + TRAIL_POINTS - 1) % TRAIL_POINTS);
    if (declared?.trail_s && now_ms - this.trailAt[newest] >= step_ms) {
      const slot = row * TRAIL_POINTS + this.trailNext[row];
      this.trailX[slot] = x;
      this.trailY[slot] = y;
      this.trailAt[slot] = now_ms;
      this.trailNext[row] = (this.trailNext[row] + 1) % TRAIL_POINTS;
    }
  }

  /** Takes a frame; `rowOf` says which row an agent's number is. */
  take(frame: Frame, rowOf: ArrayLike<number>, now_ms: number, glides: boolean): void {
    for (let i = 0; i < frame.number.length; i++) {
      const row = rowOf[frame.number[i]];
      if (row === undefined) continue;
      const x = frame.originX + frame.dx[i], y = frame.originY + frame.dy[i];
      this.move(row, x, y, frame.heading[i], frame.colour[i], now_ms, glides);
    }
    this.version++;
  }

  hide(row: number): void {
    if (!this.isShown(row)) return;
    this.small[row * STRIDE + 26] &= ~SHOWN;
    this.trailAt.fill(0, row * TRAIL_POINTS, (row + 1) * TRAIL_POINTS);
    this.shown--;
    this.version++;
  }

  /** Forgets where agents were: they have not come from there. */
  clearTrails(): void {
    this.trailAt.fill(0);
  }

  hideAll(): void {
    for (let row = 0; row < this.count; row++) this.hide(row);
  }

  /** Sets or clears a flag of an agent. */
  flag(row: number, flag: number, on: boolean): void {
    const at = row * STRIDE + 26;
    if (on) this.small[at] |= flag;
    else this.small[at] &= ~flag;
  }

  /** Where an agent is drawn now, in world units. */
  drawnAt(row: number, now_ms: number): [number, number] {
    const f = (row * STRIDE) >> 2;
    const share = this.floats[f + 5] > 0 ? Math.min(1, (now_ms - this.began[row]) / this.floats[f + 5]) : 1;
    return [
      this.originX + this.floats[f] + (this.floats[f + 2] - this.floats[f]) * share,
      this.originY + this.floats[f + 1] + (this.floats[f + 3] - this.floats[f + 1]) * share,
    ];
  }

  /** The trail of an agent up to where it is drawn, oldest first, as x, y, age_ms triples. */
  trail(row: number, now_ms: number, age_ms_max: number): number[] {
    const found: number[] = [];
    for (let k = 0; k < TRAIL_POINTS; k++) {
      const slot = row * TRAIL_POINTS + ((this.trailNext[row] + k) % TRAIL_POINTS);
      const age = now_ms - this.trailAt[slot];
      if (this.trailAt[slot] && age <= age_ms_max) found.push(this.trailX[slot], this.trailY[slot], age);
    }
    const f = (row * STRIDE) >> 2;
    if (!found.length) return found;
    found.splice(-3, 3, this.originX + this.floats[f], this.originY + this.floats[f + 1], 0);
    return found;
  }

  /** Moves the origin and the base of times, so that 24 bits are enough near the origin and now. */
  rebase(originX: number, originY: number, now_ms: number): void {
    const byX = this.originX - originX, byY = this.originY - originY, by_ms = this.base_ms - now_ms;
    for (let row = 0; row < this.count; row++) {
      const f = (row * STRIDE) >> 2;
      this.floats[f] = this.x[row] - originX + (this.floats[f] - this.floats[f + 2]);
      this.floats[f + 1] = this.y[row] - originY + (this.floats[f + 1] - this.floats[f + 3]);
      this.floats[f + 2] = this.x[row] - originX;
      this.floats[f + 3] = this.y[row] - originY;
      this.floats[f + 4] += by_ms;
    }
    if (byX || byY || by_ms) this.version++;
    this.originX = originX;
    this.originY = originY;
    this.base_ms = now_ms;
  }

  private grow(capacity: number): void {
    const wider = <T extends Uint8Array | Float64Array>(old: T, count: number): T => {
      const made = new (old.constructor as new (count: number) => T)(count);
      made.set(old);
      return made;
    };
    const small = new Uint8Array(capacity * STRIDE);
    small.set(this.small);
    this.small = small;
    this.bytes = small.buffer;
    this.floats = new Float32Array(this.bytes);
    this.kind = wider(this.kind, capacity);
    this.colour = wider(this.colour, capacity);
    this.x = wider(this.x, capacity);
    this.y = wider(this.y, capacity);
    this.began = wider(this.began, capacity);
    this.trailX = wider(this.trailX, capacity * TRAIL_POINTS);
    this.trailY = wider(this.trailY, capacity * TRAIL_POINTS);
    this.trailAt = wider(this.trailAt, capacity * TRAIL_POINTS);
    this.trailNext = wider(this.trailNext, capacity);
  }
}
