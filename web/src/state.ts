/** What the page shows, and where it is kept: the address bar has the panel, the agent and the moment, so that a link
 * shows somebody else the same. */

import { get, Problem, tokenWanted } from "./api";
import type { Figures, Page } from "./types";
import { Value } from "./value";

export type Panel = "map" | "agents" | "events" | "fleet";

export const page = new Value<Page | null>(null);
/** Why the page cannot be shown; empty if it can. */
export const trouble = new Value("");
export const panel = new Value<Panel>("map");
/** The address of the agent that the Agent panel shows. */
export const selected = new Value<string | null>(null);
/** Agents chosen with a box. */
export const picked = new Value<string[]>([]);
export const follows = new Value(false);
/** The moment shown, as `2026-11-16T14:59:11.239528Z`; null for now. */
export const at = new Value<string | null>(null);
export const figures = new Value<Figures | null>(null);
/** When the server was last heard (ms, our clock), and why it is not heard if it is not. */
export const heard_ms = new Value(0);
export const silence = new Value("");
/** Parts of the fleet that are not on the map, and since when the first of them is not (ms, our clock), if that is known. */
export const missing = new Value<{ names: string[]; since_ms: number | null }>({ names: [], since_ms: null });
/** When the newest commit was made that the map shows (ms). */
export const newest_ms = new Value(0);
/** The rows of all agents that were on the map, and how many these are: the same table tells nobody that it has grown. */
export const onMap = new Value<{ rows: ReadonlyMap<string, number>; count: number }>({ rows: new Map(), count: 0 });
/** Read out by screen readers. */
export const said = new Value("");

export function say(text: string): void {
  said.set(said.get() === text ? `${text}\u00a0` : text);
}

export function hear(): void {
  heard_ms.set(Date.now());
  silence.set("");
}

/** Whether the token allows this: `operate`, or `command:Drone`. */
export function may(scope: string, of: Page | null = page.get()): boolean {
  if (!of || of.mode === "replay") return false;
  return of.scopes.includes(scope) || (scope.startsWith("command:") && of.scopes.includes("command:*"));
}

export function hasMap(of: Page): boolean {
  return of.kinds.some((kind) => kind.map !== null);
}

/** Reads what the fleet is like: at the beginning, and after each reconnect, for it may have been upgraded meanwhile. */
export async function loadPage(): Promise<void> {
  try {
    const found = await get<Page>("/v1/page");
    const known = page.get(), isSame = known && JSON.stringify({ ...found, to: null }) === JSON.stringify({ ...known, to: null });
    if (isSame && (found.mode === "live" || found.to === known.to)) return; // The end of a live log always moves.
    if (found.mode === "replay" && at.get() === null) at.set(found.from ?? found.to);
    if (!hasMap(found) && panel.get() === "map") panel.set(found.mode === "live" ? "fleet" : "events");
    if (found.mode === "replay" && panel.get() === "fleet") panel.set("events");
    page.set(found);
    trouble.set("");
    hear();
    document.title = `${found.fleet} · stigmergy`;
  } catch (error) {
    if (!tokenWanted.get()) trouble.set(error instanceof Problem ? error.message : "the page could not be loaded");
  }
}

export function select(address: string | null): void {
  selected.set(address);
  if (!address) follows.set(false);
  say(address ? `${address} selected` : "No agent selected");
}

/** Times with six digits behind the point, so that they sort as text. */
export function exact(time: string): string {
  const [whole, part = ""] = time.replace(/(Z|\+00:00)$/, "").split(".");
  return `${whole}.${part.slice(0, 6).padEnd(6, "0")}Z`;
}

export function timeOf(ms: number): string {
  return exact(new Date(ms).toISOString());
}

function readAddress(): void {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const values = new URLSearchParams(query);
  if (["map", "agents", "events", "fleet"].includes(name)) panel.set(name as Panel);
  selected.set(values.get("agent"));
  const moment = values.get("at");
  if (moment === null || !Number.isNaN(Date.parse(moment))) at.set(moment === null ? null : exact(moment));
}

function writeAddress(): void {
  const values = new URLSearchParams();
  const agent = selected.get(), moment = at.get();
  if (agent) values.set("agent", agent);
  if (moment && !isPlaying.get()) values.set("at", moment);
  const query = values.toString().replaceAll("%2F", "/").replaceAll("%3A", ":");
  const next = `#/${panel.get()}${query ? `?${query}` : ""}`;
  if (next !== location.hash) history.replaceState(null, "", next);
}

/** Whether the moment moves on by itself. */
export const isPlaying = new Value(false);

export function bindAddress(): void {
  readAddress();
  for (const value of [panel, selected, at, isPlaying]) value.watch(writeAddress);
  addEventListener("hashchange", readAddress);
}
