/** The timeline: any moment of the journal, by slider, by playing, or event by event. It moves `at`, and all panels follow. */

import { useEffect } from "preact/hooks";
import { agentPath, get, otherLogs } from "./api";
import { at, exact, isPlaying, page as pageValue, say, select, selected, timeOf } from "./state";
import { brief, clock, tag } from "./show";
import type { AgentState, FleetEvent, KeptEvent } from "./types";
import { useNow, useValue, Value } from "./value";

export const SPEEDS = [0.1, 0.5, 1, 2, 5, 10, 30, 100];
const TICK_MS = 200;
const STEP_MS_MAX = 60_000;
/** Keys that are pressed faster than steps are made wait; one more is ignored. */
const STEPS_WAITING_MAX = 20;

export const speed = new Value(1);
/** The event that the last step went to. */
export const stepped = new Value<FleetEvent | null>(null);

function bounds(): [number, number] {
  const page = pageValue.get();
  const to = page?.mode === "replay" && page.to ? Date.parse(page.to) : Date.now();
  return [page?.from ? Date.parse(page.from) : to - 3_600_000, to];
}

/** Goes to a moment (ms); beyond the end of a live journal that is now. */
export function goTo(ms: number): void {
  const [from, to] = bounds(), isReplay = pageValue.get()?.mode === "replay";
  stepped.set(null);
  if (ms >= to && !isReplay) return goLive();
  if (ms < to) return at.set(timeOf(Math.max(from, ms)));
  isPlaying.set(false);
  at.set(exact(pageValue.get()?.to ?? timeOf(to))); // To the microsecond: the last commit belongs to the end.
}

export function goLive(): void {
  isPlaying.set(false);
  stepped.set(null);
  if (pageValue.get()?.mode === "replay") return;
  if (at.get()) say("Live");
  at.set(null);
}

export function togglePlay(): void {
  const [from, to] = bounds();
  if (at.get() === null) {
    at.set(timeOf(to)); // Pausing what is live keeps what is shown.
    return;
  }
  if (!isPlaying.get() && Date.parse(at.get()!) >= to && pageValue.get()?.mode === "replay") goTo(from);
  isPlaying.set(!isPlaying.get());
}

/** Where to step from: an event, a moment, or the end of the log. */
type Start = { event: FleetEvent } | { time: string } | null;

/** The first events behind a start, or the last before it, of all shards in one order: that in which they were kept. */
export async function nearest(start: Start, direction: 1 | -1, count: number, filter: string, signal: AbortSignal): Promise<KeptEvent[]> {
  const from = start === null ? "" : "event" in start ? `&event=${keyOf(start.event)}` : `&time=${start.time}`;
  const path = `/v1/page/events?limit=${count}${direction < 0 ? "&back=1" : ""}${from}${filter && `&${filter}`}`;
  const found = await get<{ events: KeptEvent[]; missing: string[] }>(path, signal);
  otherLogs.set(found.missing.join(", "));
  return found.events;
}

/** Events of several shards by their times; those of a shard stay in the order of its log, also where times differ. */
export function inOrder(events: FleetEvent[]): FleetEvent[] {
  const latest = new Map<number, string>();
  const timed = events.map((one): [string, FleetEvent] => {
    const time = exact(one.time), before = latest.get(one.shard) ?? "";
    latest.set(one.shard, time > before ? time : before);
    return [latest.get(one.shard)!, one];
  });
  return timed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, one]) => one);
}

/** Goes to the moment at which an event was kept, so that what is shown includes it: an event that may wait has happened
 * before its commit. */
export async function goToEvent(event: Pick<FleetEvent, "agent" | "position" | "time">, signal?: AbortSignal): Promise<void> {
  isPlaying.set(false);
  let time = exact(event.time);
  try {
    const kept = await get<AgentState>(`${agentPath(event.agent)}?at=${event.position}`, signal);
    if (kept.time && exact(kept.time) > time) time = exact(kept.time);
  } catch {
    // Its part of the log does not answer: the panels say so.
  }
  if (signal?.aborted) return;
  stepped.set("index" in event ? (event as FleetEvent) : null);
  at.set(time);
}

/** What tells an event from all others. */
export function keyOf(event: FleetEvent): string {
  return `${event.shard}:${event.position}.${event.index}`;
}

let steps: Promise<void> = Promise.resolve(), waiting = 0;

/** Goes to the next event, or the one before: one after the other, so that a key that is held skips none. */
export function step(direction: 1 | -1): Promise<void> {
  isPlaying.set(false);
  if (waiting < STEPS_WAITING_MAX) {
    waiting++;
    steps = steps.then(() => stepOnce(direction)).finally(() => waiting--);
  }
  return steps;
}

async function stepOnce(direction: 1 | -1): Promise<void> {
  const moment = at.get(), last = moment && stepped.get(), agent = selected.get();
  if (moment === null && direction > 0) return; // Nothing is later than now.
  const start = last ? { event: last } : moment ? { time: moment } : null;
  let next: KeptEvent | undefined;
  try {
    [next] = await nearest(start, direction, 1, agent ? `agent=${encodeURIComponent(agent)}` : "", AbortSignal.timeout(STEP_MS_MAX));
  } catch (error) {
    return say((error as Error).message);
  }
  if (at.get() !== moment) return; // Somebody has gone elsewhere meanwhile.
  const log = ofOneNode();
  if (!next) return say(`${direction > 0 ? "No later event" : "No earlier event"}${log && ` ${log}`}`);
  stepped.set(next);
  at.set(exact(next.kept));
  say(`${next.agent}: ${tag(next.type)} ${brief(next.fields)}`);
}

/** Whose log is stepped through, where other nodes have theirs; that of an agent is the one of its node. */
function ofOneNode(): string {
  return otherLogs.get() && !selected.get() ? `in the log of ${pageValue.get()?.node}` : "";
}

/** Moves the moment on while it plays. */
function usePlaying(): void {
  const isOn = useValue(isPlaying);
  useEffect(() => {
    if (!isOn) return;
    let last = performance.now();
    const timer = setInterval(() => {
      const now = performance.now(), moment = at.get();
      if (moment) goTo(Date.parse(moment) + (now - last) * speed.get());
      last = now;
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [isOn]);
}

function Sign({ path }: { path: string }) {
  return <svg class="sign" viewBox="0 0 16 16" aria-hidden="true"><path d={path} /></svg>;
}

export function Timeline() {
  const page = useValue(pageValue)!, moment = useValue(at), isOn = useValue(isPlaying), rate = useValue(speed), event = useValue(stepped);
  const others = useValue(otherLogs), chosen = useValue(selected);
  useNow(1000);
  usePlaying();
  const [from, to] = bounds();
  const value = moment ? Date.parse(moment) : to;
  const isReplay = page.mode === "replay";
  return (
    <footer class="timeline" aria-label="Time">
      <div class="buttons" role="group" aria-label="Playing">
        <button title="One event back (,)" aria-label="One event back" onClick={() => void step(-1)}><Sign path="M3 2h2v12H3zM14 2v12L6 8z" /></button>
        <button class="play" title="Play or pause (Space)" aria-label={moment === null || isOn ? "Pause" : "Play"} onClick={togglePlay}><Sign path={moment === null || isOn ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 1.5v13L14 8z"} /></button>
        <button title="One event on (.)" aria-label="One event on" onClick={() => void step(1)}><Sign path="M11 2h2v12h-2zM2 2v12l8-6z" /></button>
        <label>
          <span class="unseen">Speed</span>
          <select value={String(rate)} onChange={(change) => speed.set(Number(change.currentTarget.value))}>
            {SPEEDS.map((one) => <option key={one} value={String(one)}>{one}×</option>)}
          </select>
        </label>
      </div>
      <input
        type="range"
        aria-label="Moment"
        aria-valuetext={moment ? clock(value, true) : "live"}
        min={from}
        max={Math.max(to, from + 1)}
        step={1}
        value={value}
        onInput={(input) => goTo(Number(input.currentTarget.value))}
      />
      <output class="moment">
        {moment ? <time dateTime={moment}>{clock(value, to - from > 80_000_000)}</time> : "now"}
        {event && <button class="link" onClick={() => select(event.agent)}>{event.agent} {tag(event.type)}</button>}
        {event && others && !chosen && <small class="faint" title={`Not stepped through: the events of ${others}`}>{ofOneNode()}</small>}
      </output>
      {!isReplay && <button class="live" aria-pressed={moment === null} title="Back to live (l)" onClick={goLive}>Live</button>}
    </footer>
  );
}
