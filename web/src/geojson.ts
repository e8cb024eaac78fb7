/** GeoJSON as lines, outlines and points in world units. What it cannot draw it leaves out. */

import { extend, NOWHERE, type Bounds } from "./camera";
import { mercator } from "./frames";
import type { Json } from "./types";

export interface Shape {
  name: string;
  /** Of its own, from the feature's `colour`; empty for that of its agent, or the layer's. */
  colour: string;
  /** Of an agent that draws it: the number of that one's colour now. */
  shade?: number;
  isArea: boolean;
  /** Each a line or a ring: x, y, x, y, … */
  lines: Float64Array[];
  points: [number, number][];
  bounds: Bounds;
}

interface Geometry {
  type: string;
  coordinates?: unknown;
  geometries?: Geometry[];
}

interface Feature {
  type: string;
  geometry?: Geometry | null;
  properties?: Record<string, Json> | null;
  features?: Feature[];
}

/** The shapes of a FeatureCollection, a feature or a bare geometry. */
export function readShapes(given: unknown, plane: "geo" | "xy"): Shape[] {
  const root = given as Feature;
  if (root?.type === "FeatureCollection") return (root.features ?? []).flatMap((one) => readShapes(one, plane));
  const feature: Feature = root?.type === "Feature" ? root : { type: "Feature", geometry: root as unknown as Geometry };
  const properties = feature.properties ?? {};
  const text = (...names: string[]) => {
    const found = names.map((name) => properties[name]).find((one) => typeof one === "string" || typeof one === "number");
    return found === undefined ? "" : String(found);
  };
  const shape: Shape = {
    name: text("name", "title", "id"),
    colour: text("colour", "color", "stroke", "fill"),
    isArea: false, lines: [], points: [], bounds: NOWHERE,
  };
  addGeometry(shape, feature.geometry ?? null, plane);
  return shape.lines.length || shape.points.length ? [shape] : [];
}

function addGeometry(shape: Shape, geometry: Geometry | null, plane: "geo" | "xy"): void {
  const place = (one: unknown): [number, number] => {
    const [x, y] = one as [number, number];
    const found: [number, number] = [x, plane === "geo" ? mercator(y) : y];
    shape.bounds = extend(shape.bounds, ...found);
    return found;
  };
  const line = (one: unknown) => shape.lines.push(Float64Array.from((one as unknown[]).flatMap(place)));
  const rings = (one: unknown) => ((shape.isArea = true), (one as unknown[]).forEach(line));
  const many = (geometry?.coordinates ?? []) as unknown[];
  switch (geometry?.type) {
    case "Point": shape.points.push(place(many)); break;
    case "MultiPoint": shape.points.push(...many.map(place)); break;
    case "LineString": line(many); break;
    case "MultiLineString": many.forEach(line); break;
    case "Polygon": rings(many); break;
    case "MultiPolygon": many.forEach(rings); break;
    case "GeometryCollection": geometry.geometries?.forEach((one) => addGeometry(shape, one, plane)); break;
  }
}
