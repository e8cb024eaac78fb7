/** The page around the panels: its bar, the search, keys, the token, and how old what it shows is. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Side } from "./agent";
import { follow, get, pause, setToken, token, TOKEN_COMMAND, tokenWanted } from "./api";
import { Feed } from "./feed";
import { FleetPanel } from "./fleet";
import { AgentsPanel, EventsPanel } from "./lists";
import { MapPanel } from "./map";
import {
  at, figures, follows, hasMap, hear, heard_ms, isPlaying, loadPage, missing, newest_ms, page as pageValue, panel, picked,
  said, select, selected, silence, trouble, type Panel,
} from "./state";
import { clock, span } from "./show";
import { switchTheme } from "./theme";
import { goLive, step, Timeline, togglePlay } from "./timeline";
import type { Listed, Page } from "./types";
import { useNow, useValue } from "./value";

const PANELS: [Panel, string][] = [["map", "Map"], ["agents", "Agents"], ["events", "Events"], ["fleet", "Fleet"]];
/** Without a map there is none; of a log that is played back there are no figures of now. */
const panelsOf = (page: Page) => PANELS.filter(([name]) => (name === "map" ? hasMap(page) : name !== "fleet" || page.mode === "live"));
/** The server sends figures every second: after so long without any, what is shown is old. */
const OLD_MS = 3_500;
const RELOAD_MS = 3_000;
const KEYS: [string, string][] = [
  ["/", "search"], ["1 2 3 4", "panels"], ["Space", "play or pause"], [", .", "one event back, on"], ["l", "back to live"],
  ["f", "follow the selected agent"], ["+ − 0", "zoom, show all (on the map)"], ["Arrows", "move the map"],
  ["Shift and drag", "choose agents with a box"], ["t", "light or dark"], ["Esc", "close"], ["?", "these keys"],
];

export function App() {
  const page = useValue(pageValue), wrong = useValue(trouble), wanted = useValue(tokenWanted), words = useValue(said);
  useEffect(() => {
    void loadPage();
    const timer = setInterval(() => pageValue.get() === null && !tokenWanted.get() && void loadPage(), RELOAD_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <>
      <div class="unseen" role="status" aria-live="polite">{words}</div>
      {page ? <Loaded page={page} /> : !wanted && <p class="empty" role="status">{wrong ? `${wrong}. Trying again…` : "Loading…"}</p>}
      {wanted && <TokenDialog />}
    </>
  );
}

function Loaded({ page }: { page: Page }) {
  const shown = useValue(panel), agent = useValue(selected), many = useValue(picked);
  const [isHelp, setHelp] = useState(false);
  const shape = JSON.stringify(page.kinds.map((kind) => [kind.kind, kind.map]));
  const feed = useMemo(() => new Feed(page), [shape]);
  useEffect(() => () => feed.stop(), [feed]);
  useFigures(page);
  useMapAt(page, feed);
  useKeys(page, () => setHelp((on) => !on));
  const panels = panelsOf(page);
  return (
    <div class={agent || many.length > 1 ? "page with-side" : "page"}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to the panel</a>
      <header class="bar">
        <strong class="name" title={`stigmergy ${page.version}`}>{page.fleet}{page.node && ` · ${page.node}`}</strong>
        <nav aria-label="Panels">
          {panels.map(([name, title], k) => (
            <button key={name} aria-current={shown === name ? "page" : undefined} title={`${title} (${k + 1})`} onClick={() => panel.set(name)}>{title}</button>
          ))}
        </nav>
        <Search feed={feed} page={page} />
        <Freshness page={page} />
        <button class="icon" title="Light or dark (t)" aria-label="Light or dark" onClick={switchTheme}>◐</button>
        <button class="icon" title="Keys (?)" aria-label="Keys" onClick={() => setHelp(true)}>?</button>
      </header>
      <main id="main" tabIndex={shown === "map" ? -1 : 0}>
        {shown === "map" && hasMap(page) && <MapPanel key={shape} feed={feed} />}
        {shown === "agents" && <AgentsPanel />}
        {shown === "events" && <EventsPanel />}
        {shown === "fleet" && <FleetPanel />}
      </main>
      <Side />
      <Timeline />
      {isHelp && <HelpDialog onClose={() => setHelp(false)} />}
    </div>
  );
}

/** Follows the figures; they are also what says that the server is there. */
function useFigures(page: Page): void {
  useEffect(() => {
    let wasLost = false;
    const lose = (why: string) => (silence.set(why), (wasLost = true));
    const find = () => {
      hear();
      if (wasLost) void loadPage();
      wasLost = false;
    };
    if (page.mode === "replay") {
      const ask = () => get<{ status: string }>("/healthz").then(find, (error) => lose(error.message));
      const timer = setInterval(ask, 2_000);
      return () => clearInterval(timer);
    }
    return follow("/v1/fleet", (event) => {
      const found = JSON.parse(event.data);
      if (event.event === "missing") lose(found.error); // The server is there, the fleet behind it is not.
      if (event.event !== "fleet") return;
      figures.set(found);
      find();
    }, lose);
  }, [page.mode]);
}

/** Keeps the map at the moment shown: live over its socket, else one question at a time. */
function useMapAt(page: Page, feed: Feed): void {
  const shown = useValue(panel), moment = useValue(at);
  const isBusy = useRef(false), next = useRef<string | null>(null);
  useEffect(() => {
    if (!hasMap(page)) return;
    next.current = moment;
    if (moment === null) return feed.start();
    feed.stop();
    if (isBusy.current || shown !== "map") return;
    isBusy.current = true;
    void (async () => {
      for (let done: string | null = null; next.current && next.current !== done; ) {
        done = next.current;
        if (await feed.show(done, isPlaying.get()) || isPlaying.get()) continue;
        await pause(RELOAD_MS); // Somebody else may have looked back, or a node may be back.
        if (next.current === done) done = null;
      }
      isBusy.current = false;
    })();
  }, [page, feed, moment, shown]);
}

function useKeys(page: Page, toggleHelp: () => void): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key === "Escape" && !target.closest("dialog")) {
        if (target.matches("input, textarea, select")) return target.blur();
        if (selected.get()) select(null);
        else picked.set([]);
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input:not([type=range]):not([type=checkbox]), textarea, select")) return;
      if (event.key === " " && target.matches("button, summary, input")) return;
      const keys: Record<string, () => void> = {
        "/": () => document.getElementById("search")?.focus(),
        " ": togglePlay,
        ",": () => void step(-1),
        ".": () => void step(1),
        l: goLive,
        f: () => selected.get() && follows.set(!follows.get()),
        t: switchTheme,
        "?": toggleHelp,
        ...Object.fromEntries(panelsOf(page).map(([name], k) => [String(k + 1), () => panel.set(name)])),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [page]);
}

/** Says whether what is shown is live, how old it is, and which parts are missing. */
function Freshness({ page }: { page: Page }) {
  // What changes with each frame of the map is read twice a second, and not watched.
  const now = useNow(500), why = useValue(silence), moment = useValue(at), { names, since_ms } = useValue(missing), told = useValue(figures);
  // The map names what it lacks at its moment; the figures, what does not answer now.
  const lost = [...new Set([...names, ...((!moment && told?.missing) || [])])];
  const without = lost.length ? `${lost.length} ${lost.length === 1 ? "part" : "parts"} missing${since_ms ? ` for ${span((now - since_ms) / 1000)}` : ""}` : "";
  const last = heard_ms.get(), newest = newest_ms.get();
  const age_ms = now - last;
  let tone = "good", text = "live", title = newest ? `The newest commit on the map is ${span((now - newest) / 1000)} old.` : "";
  if (age_ms > OLD_MS) {
    tone = "bad";
    text = `no contact, ${span(age_ms / 1000)} old`;
    title = why || "The server has not been heard.";
  } else if (moment) {
    tone = without ? "warn" : "past";
    text = (page.mode === "replay" ? "replay" : `past, ${clock(moment)}`) + (without && ` · ${without}`);
    title = lost.join(", ");
  } else if (without) {
    tone = "warn";
    text = without;
    title = lost.join(", ");
  } else if (age_ms > 1500) text = `live, ${span(age_ms / 1000)} old`;
  return (
    <span class={`fresh ${tone}`} title={title}>
      <i aria-hidden="true" />
      {text}
      <span class="unseen" role="status">{tone === "bad" ? "No contact with the server" : tone === "warn" ? text : ""}</span>
    </span>
  );
}

/** Finds agents by a part of their name: those on the map at once, the others by asking. */
function Search({ feed, page }: { feed: Feed; page: Page }) {
  const [text, setText] = useState("");
  const [asked, setAsked] = useState<string[]>([]);
  const [place, setPlace] = useState(0);
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    const control = new AbortController();
    setPlace(0);
    setAsked([]);
    if (!text) return;
    const timer = setTimeout(() => {
      const prefixes = text.includes("/") ? [text] : page.kinds.map((one) => `${one.kind}/${text}`);
      for (const prefix of prefixes) {
        const kind = prefix.split("/")[0];
        if (!page.kinds.some((one) => one.kind === kind)) continue;
        // The cursor is an address: the page behind the one just before the prefix begins with it.
        const before = prefix.slice(0, -1) + String.fromCharCode(prefix.charCodeAt(prefix.length - 1) - 1) + "~";
        get<Listed>(`/v1/agents?kind=${kind}&limit=8&cursor=${encodeURIComponent(before)}`, control.signal).then(
          (found) => setAsked((old) => [...old, ...found.agents.map((one) => one.agent).filter((one) => one.startsWith(prefix))]),
          () => {},
        );
      }
    }, 150);
    return () => (clearTimeout(timer), control.abort());
  }, [text]);
  const found = useMemo(() => {
    if (!text) return [];
    const part = text.toLowerCase(), names: string[] = [];
    for (const name of feed.positions.names) {
      if (name.toLowerCase().includes(part)) names.push(name);
      if (names.length >= 50) break;
    }
    names.sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
    return [...new Set([...asked, ...names])].slice(0, 8);
  }, [text, asked]);
  const choose = (name: string | undefined) => {
    if (!name) return;
    select(name);
    globalThis.stigmergyMap?.centre(name);
    setOpen(false);
    setText("");
    (document.activeElement as HTMLElement)?.blur();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setPlace(Math.min(place + 1, found.length - 1));
    else if (event.key === "ArrowUp") setPlace(Math.max(place - 1, 0));
    else if (event.key === "Enter") choose(found[place]);
    else return;
    event.preventDefault();
  };
  const isShown = isOpen && text !== "";
  return (
    <div class="search">
      <input id="search" type="search" role="combobox" aria-label="Search for an agent" aria-expanded={isShown} aria-controls="found" aria-autocomplete="list"
        aria-activedescendant={isShown && found.length ? `found-${place}` : undefined} placeholder="Search  /" autocomplete="off" spellcheck={false} value={text}
        onInput={(event) => (setText(event.currentTarget.value), setOpen(true))} onKeyDown={onKeyDown} onBlur={() => setTimeout(() => setOpen(false), 150)} onFocus={() => setOpen(true)} />
      {isShown && (
        <ul id="found" role="listbox" aria-label="Agents found">
          {found.map((name, k) => <li key={name} id={`found-${k}`} role="option" aria-selected={k === place} onPointerDown={() => choose(name)}>{name}</li>)}
          {!found.length && <li class="faint" role="option" aria-selected={false}>nothing found</li>}
        </ul>
      )}
    </div>
  );
}

function useDialog(): { current: HTMLDialogElement | null } {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return dialog;
}

function TokenDialog() {
  const dialog = useDialog();
  const [text, setText] = useState("");
  const wasGiven = token() !== "";
  return (
    <dialog ref={dialog} aria-labelledby="token-title" onCancel={(event) => event.preventDefault()}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setToken(text.trim());
          tokenWanted.set(false);
          void loadPage();
        }}
      >
        <h2 id="token-title">This fleet wants a token</h2>
        {wasGiven && <p class="bad" role="alert">The token you gave does not count, or not any more.</p>}
        <p>Make one: <code>{TOKEN_COMMAND}</code></p>
        <p><code>read</code> shows everything, <code>command:*</code> or <code>command:KIND</code> sends commands, <code>operate</code> is for dead letters and stopped agents. The token stays in this tab, and is forgotten when you close it.</p>
        <input type="password" aria-label="Token" autocomplete="off" autofocus value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <button class="primary" disabled={!text.trim()}>Open</button>
      </form>
    </dialog>
  );
}

function HelpDialog({ onClose }: { onClose: () => void }) {
  const dialog = useDialog();
  return (
    <dialog ref={dialog} aria-labelledby="help-title" onClose={onClose}>
      <h2 id="help-title">Keys</h2>
      <dl class="pairs">{KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
      <p><a href="/docs">The API of this fleet</a></p>
      <button class="primary" autofocus onClick={() => dialog.current?.close()}>Close</button>
    </dialog>
  );
}
