/** The live map: a WebSocket that fills the table of positions, and the map at a moment of the journal. */

import { backOff_ms, get, openSocket, pause, tokenWanted } from "./api";
import { decodeFrame, Positions } from "./frames";
import { readShapes, type Shape } from "./geojson";
import { hear, missing, newest_ms, onMap, silence } from "./state";
import type { Json, MapAt, Page } from "./types";
import { Value } from "./value";

const FRAMES_PER_S = 5;

export class Feed {
  readonly positions: Positions;
  /** Names of colours; an agent's colour is a place in this list. */
  readonly colours = new Value<string[]>([]);
  /** What agents draw, by the row of each; a new map after each change. */
  readonly drawn = new Value<ReadonlyMap<number, Shape[]>>(new Map());
  /** Sentences about agents that are left out. */
  readonly troubles = new Value<string[]>([]);
  /** Why the moment that was asked for is not shown; empty if it is. */
  readonly failure = new Value("");
  /** Script time that the news took since it was last asked for. */
  private spent_ms = 0;
  private rowOf: number[] = [];
  private readonly plane: "geo" | "xy";
  /** The kinds that are on the map, by their layers. */
  private readonly mapped: string[];
  private socket: WebSocket | null = null;
  private isWanted = false;
  private asked: AbortController | null = null;
  /** The moment of the past that is shown; null while it is live. */
  private shownAt: string | null = null;
  glides = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  bytes = 0;
  frames = 0;

  constructor(page: Page) {
    this.positions = new Positions(page);
    const mapped = page.kinds.filter((kind) => kind.map);
    this.mapped = mapped.map((kind) => kind.kind);
    this.plane = mapped[0]?.map?.plane ?? "geo"; // All kinds of a fleet have the same.
  }

  takeSpent_ms(): number {
    const spent = this.spent_ms;
    this.spent_ms = 0;
    return spent;
  }

  /** Follows the fleet, and connects again for as long as that is wanted. */
  start(): void {
    if (this.isWanted) return;
    this.isWanted = true;
    this.shownAt = null;
    this.asked?.abort();
    this.failure.set("");
    void (async () => {
      for (let tries = 0; this.isWanted; tries++) {
        if (await this.connect()) tries = 0;
        if (this.isWanted) await pause(backOff_ms(tries));
        while (this.isWanted && tokenWanted.get()) await pause(500);
      }
    })();
  }

  stop(): void {
    if (this.isWanted) this.clearNotes(); // They were of now.
    this.isWanted = false;
    this.socket?.close();
  }

  /** Shows the map at a moment; a later call overtakes an earlier one. Without an answer it shows nothing, and why:
   * positions of another moment would be wrong. Returns whether the question was answered or overtaken. */
  async show(at: string, glides: boolean): Promise<boolean> {
    this.stop();
    this.asked?.abort();
    const asked = (this.asked = new AbortController());
    let found: MapAt;
    try {
      found = await get<MapAt>(`/v1/map?at=${at}`, asked.signal);
    } catch (error) {
      if (asked.signal.aborted) return true;
      this.positions.hideAll();
      this.draw([], true);
      this.clearNotes();
      this.failure.set((error as Error).message);
      return false;
    }
    if (asked.signal.aborted) return true;
    this.failure.set("");
    const lost = (found.missing ?? []).map((part) => ({ name: part.node ?? `shard-${part.shard}`, why: part.why }));
    missing.set({ names: lost.map((part) => part.name), since_ms: null });
    this.troubles.set([...lost.map((part) => `${part.name} is not on this map: ${part.why}`), ...(found.troubles ?? [])]);
    const begin = performance.now();
    // Agents leave trails while time goes on; after a jump they have not come from where they were drawn.
    if (!glides || this.shownAt === null || at < this.shownAt) this.positions.clearTrails();
    this.shownAt = at;
    const shown = new Set<number>();
    found.names.forEach(([name, layer], i) => {
      const row = this.positions.add(name, layer);
      shown.add(row);
      this.positions.move(row, found.x[i], found.y[i], found.heading[i], this.colour(found.colour[i]), begin, glides && this.glides);
    });
    for (let row = 0; row < this.positions.count; row++) if (!shown.has(row)) this.positions.hide(row);
    this.tellNames();
    this.draw(Object.entries(found.drawn ?? {}).map(([name, features]) => [this.positions.add(name, this.mapped.indexOf(name.split("/")[0])), features]), true);
    this.positions.version++;
    newest_ms.set(found.time ? Date.parse(found.time) : 0);
    this.spent_ms += performance.now() - begin;
    return true;
  }

  private tellNames(): void {
    const { rows, count } = this.positions;
    if (onMap.get().rows !== rows || onMap.get().count !== count) onMap.set({ rows, count });
  }

  private clearNotes(): void {
    this.troubles.set([]);
    missing.set({ names: [], since_ms: null });
  }

  private colour(name: string | null): number {
    if (!name) return 255;
    const known = this.colours.get().indexOf(name);
    if (known >= 0) return known;
    this.colours.set([...this.colours.get(), name]);
    return this.colours.get().length - 1;
  }

  /** Takes what agents draw, by their rows; with `all`, the others draw nothing. */
  private draw(news: [number, Json[]][], all: boolean): void {
    const next = new Map(all ? [] : this.drawn.get());
    for (const [row, features] of news) {
      const shapes = features.flatMap((one) => readShapes(one, this.plane));
      if (shapes.length) next.set(row, shapes);
      else next.delete(row);
    }
    if (next.size || this.drawn.get().size) this.drawn.set(next);
  }

  /** One connection, until it ends. Returns whether it was ever open. */
  private connect(): Promise<boolean> {
    return new Promise((done) => {
      const socket = (this.socket = openSocket(`/v1/map?rate=${FRAMES_PER_S}`));
      let wasOpen = false;
      socket.binaryType = "arraybuffer";
      socket.onopen = () => this.isWanted && this.clearNotes(); // It tells them if there are any, and says nothing if not.
      socket.onmessage = (message) => {
        if (socket !== this.socket || !this.isWanted) return;
        wasOpen = true;
        const begin = performance.now();
        if (typeof message.data === "string") this.takeText(message.data);
        else this.takeFrame(message.data, begin);
        this.spent_ms += performance.now() - begin;
        hear();
      };
      socket.onclose = (event) => {
        if (this.isWanted) silence.set(event.reason || "the connection of the map broke");
        done(wasOpen);
      };
    });
  }

  private takeFrame(data: ArrayBuffer, now_ms: number): void {
    const frame = decodeFrame(data);
    this.bytes += data.byteLength;
    this.frames++;
    this.positions.take(frame, this.rowOf, now_ms, this.glides);
    newest_ms.set(frame.time_ms);
  }

  private takeText(text: string): void {
    const said = JSON.parse(text);
    if (said.names) {
      if (said.first === 0) {
        this.positions.hideAll(); // A new connection: what it does not name is gone.
        this.draw([], true);
        this.rowOf = [];
      }
      (said.names as [string, number][]).forEach(([name, layer], i) => (this.rowOf[said.first + i] = this.positions.add(name, layer)));
      this.tellNames();
    }
    if (said.colours) this.colours.set(said.colours);
    if (said.gone) for (const number of said.gone) this.positions.hide(this.rowOf[number]);
    if (said.drawn) this.draw(said.drawn.map(([number, features]: [number, Json[]]) => [this.rowOf[number], features]), false);
    if (said.missing) missing.set({ names: said.missing, since_ms: said.missing.length ? Date.now() - said.age_ms : null });
    if (said.troubles) this.troubles.set(said.troubles);
  }
}
