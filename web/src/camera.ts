/** What part of the plane is on the screen. World units are degrees of Mercator's projection, or metres; y is up. */

import { latitudeOf } from "./frames";

export interface Bounds {
  minX: number;
  minY: number;
  maxX: number;
  maxY: number;
}

export const NOWHERE: Bounds = { minX: Infinity, minY: Infinity, maxX: -Infinity, maxY: -Infinity };

export function extend(bounds: Bounds, x: number, y: number): Bounds {
  return {
    minX: Math.min(bounds.minX, x),
    minY: Math.min(bounds.minY, y),
    maxX: Math.max(bounds.maxX, x),
    maxY: Math.max(bounds.maxY, y),
  };
}

const METRES_PER_DEGREE = 111_319.49;

export class Camera {
  x = 0;
  y = 0;
  /** CSS pixels per world unit. */
  scale = 1;
  width = 1;
  height = 1;
  /** Whether somebody has chosen what is in view. */
  isMoved = false;

  constructor(readonly plane: "geo" | "xy") {}

  toScreen(x: number, y: number): [number, number] {
    return [(x - this.x) * this.scale + this.width / 2, this.height / 2 - (y - this.y) * this.scale];
  }

  toWorld(left: number, top: number): [number, number] {
    return [this.x + (left - this.width / 2) / this.scale, this.y - (top - this.height / 2) / this.scale];
  }

  get bounds(): Bounds {
    const halfX = this.width / 2 / this.scale, halfY = this.height / 2 / this.scale;
    return { minX: this.x - halfX, maxX: this.x + halfX, minY: this.y - halfY, maxY: this.y + halfY };
  }

  /** Zooms by a factor; what is under the point stays there. */
  zoom(factor: number, left = this.width / 2, top = this.height / 2): void {
    this.isMoved = true;
    const [x, y] = this.toWorld(left, top);
    const [least, most] = this.plane === "geo" ? [0.5, 1e8] : [1e-4, 1e4];
    this.scale = Math.max(least, Math.min(most, this.scale * factor));
    this.x = x - (left - this.width / 2) / this.scale;
    this.y = y + (top - this.height / 2) / this.scale;
  }

  pan(left: number, top: number): void {
    this.isMoved = true;
    this.x -= left / this.scale;
    this.y += top / this.scale;
  }

  fit(bounds: Bounds, margin = 48): void {
    if (bounds.minX > bounds.maxX) return;
    this.x = (bounds.minX + bounds.maxX) / 2;
    this.y = (bounds.minY + bounds.maxY) / 2;
    const least = this.plane === "geo" ? 5e-3 : 50; // One agent alone is no reason to show a square metre.
    const wide = Math.max(bounds.maxX - bounds.minX, least), high = Math.max(bounds.maxY - bounds.minY, least);
    const space = (size: number) => Math.max(size - 2 * margin, size / 2);
    this.scale = Math.min(space(this.width) / wide, space(this.height) / high);
  }

  get metresPerPixel(): number {
    if (this.plane === "xy") return 1 / this.scale;
    return (METRES_PER_DEGREE * Math.cos((latitudeOf(this.y) * Math.PI) / 180)) / this.scale;
  }

  /** A scale bar of about 100 pixels: its length on the screen and in words. */
  scaleBar(): { pixels: number; text: string } {
    const metres = roundDown(110 * this.metresPerPixel);
    const text = metres >= 1000 ? `${metres / 1000} km` : metres >= 1 ? `${metres} m` : `${metres * 100} cm`;
    return { pixels: metres / this.metresPerPixel, text };
  }

  /** The step of a grid whose lines are at least 90 pixels apart. */
  gridStep(): number {
    return roundDown((90 * 2.5) / this.scale);
  }
}

/** The next of 1, 2, 5, 10, 20, … that is not larger. */
function roundDown(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const digit = value / power;
  return (digit >= 5 ? 5 : digit >= 2 ? 2 : 1) * power;
}
