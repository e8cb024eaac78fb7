/** How values, times and counts look. */

import type { ComponentChildren } from "preact";
import { onMap, page, select } from "./state";
import type { Json } from "./types";
import { useValue } from "./value";

export function number(value: number | null | undefined, digits = 0): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 });
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${number(value / 1024 ** power, power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function millis(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${number(value / 1000, 1)} s` : `${number(value, value < 10 ? 2 : 0)} ms`;
}

/** How long ago, in words. */
export function span(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} days`;
}

export function clock(time: string | number, withDate = false): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "–";
  const iso = date.toISOString();
  return withDate ? `${iso.slice(0, 10)} ${iso.slice(11, 23)}` : iso.slice(11, 23);
}

export function tag(type: string): string {
  return type.replace(/@1$/, "");
}

export function AgentLink({ agent, text }: { agent: string; text?: string }) {
  return <button class="link" onClick={() => select(agent)}>{text ?? agent}</button>;
}

/** Text in which addresses of agents are links; all of it is one if it is the name of an agent on the map. */
function Linked({ text }: { text: string }) {
  const kinds = page.get()?.kinds ?? [], { rows } = useValue(onMap);
  const named = kinds.filter((one) => one.map).map((one) => `${one.kind}/${text}`).find((one) => rows.has(one));
  if (named) return <AgentLink agent={named} text={text} />;
  if (!text.includes("/")) return <>{text}</>;
  const parts = text.split(new RegExp(`\\b((?:${kinds.map((one) => one.kind).join("|")})/[^\\s",()[\\]…]+)`));
  return <>{parts.map((part, k) => (k % 2 && !parts[k + 1].startsWith("…") ? <AgentLink key={k} agent={part} /> : part))}</>;
}

/** A JSON value on one line, as people write it. */
export function brief(value: Json, length_max = 160): string {
  const text = typeof value === "string" ? value : Array.isArray(value) ? `[${value.map((one) => brief(one, 40)).join(", ")}]`
    : value !== null && typeof value === "object"
      ? Object.entries(value).map(([name, one]) => `${name} ${typeof one === "object" && one !== null ? `(${brief(one, 60)})` : brief(one, 60)}`).join(", ")
      : typeof value === "number" ? number(value, 6).replaceAll(",", "") : value === null ? "–" : String(value);
  return text.length > length_max ? `${text.slice(0, length_max)}…` : text;
}

/** A JSON value; objects and lists can be opened. */
export function Shown({ value }: { value: Json }) {
  if (value !== null && typeof value === "object" && Object.keys(value).length > 0 && brief(value, 1000).length > 48) {
    return (
      <details>
        <summary>{Array.isArray(value) ? `${value.length} entries` : brief(value, 44)}</summary>
        <pre><Linked text={JSON.stringify(value, null, 2)} /></pre>
      </details>
    );
  }
  return <span class={typeof value === "number" ? "figure" : value === null ? "faint" : ""}><Linked text={brief(value, 1000) || "–"} /></span>;
}

export function Card({ title, count, children, tone }: { title: string; count?: number; children: ComponentChildren; tone?: string }) {
  return (
    <section class={`card ${tone ?? ""}`} aria-label={title}>
      <h2>{title}{count !== undefined && <span class="count">{number(count)}</span>}</h2>
      {children}
    </section>
  );
}
