/** Asks the server: JSON, Server-Sent Events over fetch (EventSource cannot send a token), the address of a WebSocket. */

import { Value } from "./value";

const TOKEN_KEY = "stigmergy-token";
/** Makes a token for all that the page can do. */
export const TOKEN_COMMAND = "stigmergy token create --scope read --scope 'command:*' --scope operate NAME";
const RETRY_MS = 500;
const RETRY_MS_MAX = 10_000;
/** A stream that says nothing for so long is taken to be dead; the server sends something every 15 s. */
const SILENCE_MS_MAX = 40_000;

/** True while the server wants a token that we do not have. */
export const tokenWanted = new Value(false);

/** Nodes whose events are not in the stream of events that was opened last: each node has a log of its own. */
export const otherLogs = new Value("");

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly errors: { pointer: string; detail: string }[] = [],
    readonly commandId = "",
  ) {
    super(detail || title);
  }
}

export function token(): string {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function setToken(text: string): void {
  if (text) sessionStorage.setItem(TOKEN_KEY, text);
  else sessionStorage.removeItem(TOKEN_KEY);
}

function headers(more: Record<string, string> = {}): Record<string, string> {
  const text = token();
  return text ? { ...more, Authorization: `Bearer ${text}` } : more;
}

async function problemOf(response: Response): Promise<Problem> {
  if (response.status === 401) tokenWanted.set(true);
  try {
    const body = await response.json();
    return new Problem(response.status, body.title ?? "", body.detail ?? "", body.errors ?? [], body.command_id ?? "");
  } catch {
    return new Problem(response.status, `The server answered ${response.status}`, response.statusText);
  }
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, "No contact", "the server does not answer");
  }
  if (!response.ok && response.status !== 304) throw await problemOf(response);
  return response;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, { headers: headers(), signal, cache: "no-store" })).json();
}

/** What is there, with its tag; null if that is still the tag of what one has. */
export async function getChanged<T>(path: string, tag: string, signal?: AbortSignal): Promise<{ body: T; tag: string } | null> {
  const response = await ask(path, { headers: headers(tag ? { "If-None-Match": tag } : {}), signal, cache: "no-store" });
  return response.status === 304 ? null : { body: await response.json(), tag: response.headers.get("ETag") ?? "" };
}

export async function post<T>(path: string, body?: unknown, key?: string): Promise<T> {
  const more: Record<string, string> = key ? { "Idempotency-Key": key } : {};
  if (body !== undefined) more["Content-Type"] = "application/json";
  const text = body === undefined ? undefined : JSON.stringify(body);
  return (await ask(path, { method: "POST", headers: headers(more), body: text })).json();
}

/** An id for a command. crypto.randomUUID is missing where a page came over plain HTTP from another machine. */
export function newKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
}

export function agentPath(address: string): string {
  return `/v1/agents/${address.split("/").map(encodeURIComponent).join("/")}`;
}

export function openSocket(path: string): WebSocket {
  const url = new URL(path, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const text = token();
  // A browser sends no headers of ours here; the subprotocol is the one place for the token that is in no log.
  return text ? new WebSocket(url, ["stigmergy", `stigmergy.token.${text}`]) : new WebSocket(url);
}

export interface ServerEvent {
  event: string;
  data: string;
  id: string;
}

/** Splits a stream of Server-Sent Events; what is not whole yet is kept for the next piece. */
export class EventSplitter {
  private rest = "";
  id = "";

  push(text: string): ServerEvent[] {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    const found: ServerEvent[] = [];
    for (const block of blocks) {
      let event = "message";
      const data: string[] = [];
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        const name = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (name === "event") event = value;
        else if (name === "data") data.push(value);
        else if (name === "id") this.id = value;
      }
      if (data.length) found.push({ event, data: data.join("\n"), id: this.id });
    }
    return found;
  }
}

/** One connection of Server-Sent Events, until it ends. `on` returns false to end it. */
async function readStream(
  path: string,
  splitter: EventSplitter,
  signal: AbortSignal,
  on: (event: ServerEvent) => boolean | void,
  onOpen?: () => void,
): Promise<void> {
  const inner = new AbortController();
  const abort = () => inner.abort();
  signal.addEventListener("abort", abort);
  let heard = Date.now();
  const guard = setInterval(() => Date.now() - heard > SILENCE_MS_MAX && inner.abort(), 5_000);
  try {
    const more: Record<string, string> = splitter.id ? { "Last-Event-ID": splitter.id } : {};
    const url = splitter.id ? path.replace(/since=[^&]*&?/, "") : path; // It goes on behind the id, and not at a time.
    const response = await ask(url, { headers: headers(more), signal: inner.signal, cache: "no-store" });
    onOpen?.();
    if (path.startsWith("/v1/events")) otherLogs.set(response.headers.get("Stigmergy-Missing") ?? "");
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard = Date.now();
      for (const event of splitter.push(value)) if (on(event) === false) return inner.abort();
    }
  } finally {
    clearInterval(guard);
    signal.removeEventListener("abort", abort);
  }
}

/** Waits before another try: longer each time, and not at the same moment as everybody else. */
export function backOff_ms(tries: number): number {
  return Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** Math.min(tries, 10)) * (0.75 + Math.random() / 2);
}

/** Follows a stream for ever: connects again, behind the last id. `onDown` hears why it broke. Returns what ends it. */
export function follow(
  path: string,
  on: (event: ServerEvent) => void,
  onDown: (why: string) => void = () => {},
): () => void {
  const control = new AbortController();
  void (async () => {
    const splitter = new EventSplitter();
    for (let tries = 0; !control.signal.aborted; tries++) {
      try {
        await readStream(path, splitter, control.signal, on, () => (tries = 0));
        if (!control.signal.aborted) onDown("the server ended the stream");
      } catch (error) {
        if (control.signal.aborted) return;
        const problem = error instanceof Problem ? error : null;
        // Retention has dropped what follows the last id, or the id is of another log: begin anew.
        if (problem && (problem.status === 410 || problem.status === 400)) splitter.id = "";
        onDown(problem?.message ?? "the connection broke");
        while (tokenWanted.get() && !control.signal.aborted) await pause(500);
      }
      await pause(backOff_ms(tries));
    }
  })();
  return () => control.abort();
}

export function pause(ms: number): Promise<void> {
  return new Promise((done) => setTimeout(done, ms));
}
