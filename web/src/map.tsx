/** The Map panel: the scene, what the mouse, fingers and keys do with it, and the controls around it. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getChanged } from "./api";
import { coloursOf, rgba } from "./colours";
import type { Theme } from "./draw";
import type { Feed } from "./feed";
import { readShapes } from "./geojson";
import { Scene } from "./scene";
import { at, figures, follows, page as pageValue, picked, say, select, selected } from "./state";
import { theme as themeValue } from "./theme";
import type { Page } from "./types";
import { useValue } from "./value";

/** So many troubles are written out. */
const TROUBLES = 3;
const LAYERS_MS = 10_000;
const CLICK_PIXELS = 5;

/** For tests and measurements. */
declare global {
  var stigmergyMap: Scene | null;
}

function readTheme(names: string[]): Theme {
  const styles = getComputedStyle(document.documentElement);
  const colour = (name: string, alpha = 1) => rgba(styles.getPropertyValue(`--map-${name}`).trim(), alpha);
  return {
    ground: colour("ground"),
    grid: colour("grid"),
    line: colour("line"),
    area: colour("line", 0.12),
    text: colour("text"),
    halo: colour("ground", 0.9),
    select: colour("select"),
    pick: colour("pick"),
    bad: colour("bad"),
    circle: colour("circle", 0.92),
    palette: coloursOf(names, styles),
    plain: styles.getPropertyValue("--map-turn-1").trim(),
  };
}

export function MapPanel({ feed }: { feed: Feed }) {
  const page = useValue(pageValue)!;
  const plane = page.kinds.find((kind) => kind.map)!.map!.plane; // All kinds of a fleet have the same.
  return <section class="map" aria-label="Map"><MapView page={page} feed={feed} plane={plane} /></section>;
}

function MapView({ page, feed, plane }: { page: Page; feed: Feed; plane: "geo" | "xy" }) {
  const canvas = useRef<HTMLCanvasElement>(null), frame = useRef<HTMLDivElement>(null);
  const [scene, setScene] = useState<Scene | null>(null);
  const [trouble, setTrouble] = useState("");
  const [hidden, setHidden] = useState<ReadonlySet<number>>(new Set());
  const [layersOff, setLayersOff] = useState<ReadonlySet<string>>(new Set());
  const [isClustering, setClustering] = useState(true);
  const [isBoxing, setBoxing] = useState(false);
  const [, beat] = useState(0);
  const look = useValue(themeValue), names = useValue(feed.colours), agent = useValue(selected), many = useValue(picked);
  const isFollowing = useValue(follows), leftOut = useValue(feed.troubles), failure = useValue(feed.failure);

  useEffect(() => {
    let made: Scene;
    try {
      made = new Scene(canvas.current!, page, feed, plane);
    } catch (error) {
      return setTrouble(`The map cannot be drawn: ${(error as Error).message}. The panel Agents lists the same agents.`);
    }
    const size = () => made.resize(frame.current!.clientWidth, frame.current!.clientHeight);
    const observer = new ResizeObserver(size);
    observer.observe(frame.current!);
    size();
    setScene((globalThis.stigmergyMap = made));
    const timer = setInterval(() => beat((n) => n + 1), 1000);
    return () => {
      clearInterval(timer);
      observer.disconnect();
      made.end();
      globalThis.stigmergyMap = null;
    };
  }, []);

  useEffect(() => scene?.setTheme(readTheme(names), hidden), [scene, look, names, hidden]);
  useEffect(() => scene?.select(agent, many), [scene, agent, many]);
  // The figures say who is stopped now; of the past the map does not know.
  const now = useValue(figures), moment = useValue(at);
  useEffect(() => scene?.markStopped(moment ? [] : Object.keys(now?.status.stopped ?? {})), [scene, now, moment]);
  useEffect(() => {
    if (!scene) return;
    scene.follows = isFollowing;
    scene.isClustering = isClustering;
    scene.redraw();
  }, [scene, isFollowing, isClustering]);
  const unread = useLayers(page, feed, scene, plane, layersOff);
  const { box, tip, ...pointers } = usePointers(scene, isBoxing, setBoxing);

  const onKeyDown = (event: KeyboardEvent) => {
    if (!scene || event.ctrlKey || event.metaKey || event.altKey) return;
    const { camera } = scene;
    const moves: Record<string, () => void> = {
      ArrowLeft: () => camera.pan(80, 0),
      ArrowRight: () => camera.pan(-80, 0),
      ArrowUp: () => camera.pan(0, 80),
      ArrowDown: () => camera.pan(0, -80),
      "+": () => camera.zoom(1.5),
      "=": () => camera.zoom(1.5),
      "-": () => camera.zoom(1 / 1.5),
      "0": () => scene.fit(),
      Home: () => scene.fit(),
    };
    if (!moves[event.key]) return;
    moves[event.key]();
    if (event.key.startsWith("Arrow")) follows.set(false);
    event.preventDefault();
    event.stopPropagation();
  };

  const troubles = [...leftOut, ...unread];
  const shown = feed.positions.shown, inView = scene?.clusterer.result.inView ?? 0;
  if (trouble) return <p class="empty" role="alert">{trouble}</p>;
  return (
    <div class="ground" ref={frame}>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-roledescription="map"
        aria-label={`Map with ${shown} agents, ${inView} in view. Arrows move it, plus and minus zoom, zero shows all. The panel Agents lists them.`}
        class={isBoxing ? "boxing" : ""}
        onKeyDown={onKeyDown}
        {...pointers}
      />
      {box && <div class="box" style={box} />}
      {tip && <div class="tip" style={{ left: `${tip.left}px`, top: `${tip.top}px` }}>{tip.text}</div>}
      <div class="tools" role="toolbar" aria-label="Map">
        <button title="Zoom in (+)" aria-label="Zoom in" onClick={() => scene?.camera.zoom(1.5)}>+</button>
        <button title="Zoom out (−)" aria-label="Zoom out" onClick={() => scene?.camera.zoom(1 / 1.5)}>−</button>
        <button title="Show all agents (0)" aria-label="Show all agents" onClick={() => (follows.set(false), scene?.fit())}>⤢</button>
        <button title="Choose agents with a box (Shift and drag)" aria-label="Choose agents with a box" aria-pressed={isBoxing} onClick={() => setBoxing(!isBoxing)}>⬚</button>
        <button title="Follow the selected agent (f)" aria-label="Follow the selected agent" aria-pressed={isFollowing} disabled={!agent} onClick={() => follows.set(!isFollowing)}>◎</button>
        <button title="Put agents together that hide each other" aria-label="Clusters" aria-pressed={isClustering} onClick={() => setClustering(!isClustering)}>⁙</button>
      </div>
      <Legend names={names} scene={scene} hidden={hidden} setHidden={setHidden} page={page} layersOff={layersOff} setLayersOff={setLayersOff} />
      <div class="measure">
        <ScaleBar scene={scene} />
        <span>{shown.toLocaleString("en")} agents, {inView.toLocaleString("en")} in view</span>
      </div>
      {failure && <div class="notice bad" role="alert">The map of this moment could not be read: {failure}</div>}
      {troubles.length > 0 && (
        <div class="notice warn" role="status">
          {troubles.slice(0, TROUBLES).map((one) => <div key={one}>{one}</div>)}
          {troubles.length > TROUBLES && <div>and {troubles.length - TROUBLES} more</div>}
        </div>
      )}
      {!shown && !failure && !leftOut.length && <p class="empty">{moment ? "No agent had a position at this moment." : "No agent has a position yet."}</p>}
    </div>
  );
}

function useLayers(page: Page, feed: Feed, scene: Scene | null, plane: "geo" | "xy", off: ReadonlySet<string>) {
  const [shapes, setShapes] = useState<Record<string, ReturnType<typeof readShapes>>>({});
  const [wrong, setWrong] = useState<Record<string, string>>({});
  useEffect(() => {
    const control = new AbortController(), tags: Record<string, string> = {};
    const load = async ({ name, url }: Page["layers"][number]) => {
      let trouble = "";
      try {
        const found = await getChanged<unknown>(url, tags[name] ?? "", control.signal);
        if (found) {
          tags[name] = found.tag;
          setShapes((old) => ({ ...old, [name]: readShapes(found.body, plane) }));
        }
      } catch (error) {
        trouble = `The layer ${name} could not be loaded: ${(error as Error).message}`;
      }
      if (!control.signal.aborted) setWrong((old) => (old[name] ?? "") === trouble ? old : { ...old, [name]: trouble });
    };
    const loadAll = () => document.visibilityState === "visible" && page.layers.forEach((layer) => void load(layer));
    loadAll();
    const timer = setInterval(loadAll, LAYERS_MS); // Functions make some of them, and files are replaced.
    return () => (clearInterval(timer), control.abort());
  }, [page]);
  const layers = useMemo(() => page.layers.flatMap((one) => (off.has(one.name) ? [] : (shapes[one.name] ?? []))), [shapes, off]);
  const drawn = useValue(feed.drawn);
  useEffect(() => scene?.setShapes(layers, drawn), [scene, layers, drawn]);
  return Object.values(wrong).filter(Boolean);
}

/** One pointer pans or draws a box, two zoom; a click selects. */
function usePointers(scene: Scene | null, isBoxing: boolean, setBoxing: (on: boolean) => void) {
  const down = useRef(new Map<number, { x: number; y: number }>());
  const start = useRef<{ x: number; y: number; isBox: boolean; isDrag: boolean } | null>(null);
  const [box, setBox] = useState<Record<string, string> | null>(null);
  const [tip, setTip] = useState<{ left: number; top: number; text: string } | null>(null);
  const place = (event: PointerEvent) => ({ x: event.offsetX, y: event.offsetY });

  const onPointerDown = (event: PointerEvent) => {
    if (!scene || event.button !== 0) return;
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
    down.current.set(event.pointerId, place(event));
    start.current = { ...place(event), isBox: isBoxing || event.shiftKey, isDrag: down.current.size > 1 };
    setTip(null);
  };
  const onPointerMove = (event: PointerEvent) => {
    if (!scene) return;
    const from = down.current.get(event.pointerId), to = place(event), begin = start.current;
    if (!from || !begin) {
      const name = event.pointerType === "mouse" ? scene.agentAt(to.x, to.y) : null;
      setTip(name ? { left: to.x, top: to.y, text: name } : null);
      return;
    }
    if (Math.hypot(to.x - begin.x, to.y - begin.y) > CLICK_PIXELS) begin.isDrag = true;
    if (begin.isBox) {
      const left = Math.min(begin.x, to.x), top = Math.min(begin.y, to.y);
      setBox({ left: `${left}px`, top: `${top}px`, width: `${Math.abs(to.x - begin.x)}px`, height: `${Math.abs(to.y - begin.y)}px` });
      return;
    }
    if (!begin.isDrag) return;
    const other = [...down.current].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const factor = Math.hypot(to.x - other.x, to.y - other.y) / Math.max(1, Math.hypot(from.x - other.x, from.y - other.y));
      scene.camera.zoom(factor, other.x, other.y);
    } else {
      scene.camera.pan(to.x - from.x, to.y - from.y);
      follows.set(false);
    }
    down.current.set(event.pointerId, to);
  };
  const onPointerUp = (event: PointerEvent) => {
    const begin = start.current, end = place(event);
    if (!down.current.delete(event.pointerId) || !scene || !begin) return;
    if (down.current.size) return;
    start.current = null;
    setBox(null);
    if (begin.isBox && begin.isDrag) {
      const [x1, y1] = scene.camera.toWorld(begin.x, begin.y), [x2, y2] = scene.camera.toWorld(end.x, end.y);
      const found = scene.agentsIn(
        { minX: Math.min(x1, x2), maxX: Math.max(x1, x2), minY: Math.min(y1, y2), maxY: Math.max(y1, y2) });
      setBoxing(false);
      picked.set(found);
      say(`${found.length} ${found.length === 1 ? "agent" : "agents"} in the box`);
      if (found.length === 1) select(found[0]);
      else if (found.length) select(null);
    } else if (!begin.isDrag) {
      const name = scene.agentAt(end.x, end.y);
      if (name) select(name);
      else {
        const opened = scene.openCluster(end.x, end.y);
        if (opened === true) return;
        picked.set(opened || []);
        select(null);
        if (opened) say(`${opened.length} agents at this place`);
      }
    }
  };
  const onPointerCancel = (event: PointerEvent) => {
    down.current.delete(event.pointerId);
    start.current = null;
    setBox(null);
  };
  const onWheel = (event: WheelEvent) => {
    event.preventDefault();
    scene?.camera.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
  };
  return { box, tip, onPointerDown, onPointerMove, onPointerUp, onPointerCancel, onWheel, onPointerLeave: () => setTip(null) };
}

interface LegendProps {
  names: string[];
  scene: Scene | null;
  hidden: ReadonlySet<number>;
  setHidden: (hidden: ReadonlySet<number>) => void;
  page: Page;
  layersOff: ReadonlySet<string>;
  setLayersOff: (off: ReadonlySet<string>) => void;
}

function toggled<T>(set: ReadonlySet<T>, one: T): ReadonlySet<T> {
  const next = new Set(set);
  if (!next.delete(one)) next.add(one);
  return next;
}

function Legend({ names, scene, hidden, setHidden, page, layersOff, setLayersOff }: LegendProps) {
  const counts = scene?.countColours() ?? [];
  const colours = coloursOf(names, getComputedStyle(document.documentElement));
  if (!names.length && !page.layers.length) return null;
  return (
    <fieldset class="legend">
      <legend class="unseen">What the map shows</legend>
      {names.map((name, k) => (
        <label key={name}>
          <input type="checkbox" checked={!hidden.has(k)} onChange={() => setHidden(toggled(hidden, k))} />
          <span class="dot" style={{ background: colours[k] }} /> {name} <b>{(counts[k] ?? 0).toLocaleString("en")}</b>
        </label>
      ))}
      {page.layers.map(({ name }) => (
        <label key={name}>
          <input type="checkbox" checked={!layersOff.has(name)} onChange={() => setLayersOff(toggled(layersOff, name))} />
          <span class="dash" /> {name}
        </label>
      ))}
    </fieldset>
  );
}

function ScaleBar({ scene }: { scene: Scene | null }) {
  const [bar, setBar] = useState({ pixels: 0, text: "" });
  useEffect(() => {
    if (!scene) return;
    scene.onDrawn = () => {
      const next = scene.camera.scaleBar();
      setBar((old) => (old.text === next.text && Math.abs(old.pixels - next.pixels) < 1 ? old : next));
    };
  }, [scene]);
  return <span class="scale" style={{ width: `${bar.pixels}px` }}>{bar.text}</span>;
}
