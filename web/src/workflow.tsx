/** A run of a workflow as a graph: its steps in order, where it stands, what was tried and what was undone. */

import { AgentLink, clock } from "./show";
import type { Json, Outline, StepState } from "./types";

const UNDO = "undo ";
const MARKS: Record<string, string> = { begun: "●", again: "↻", done: "✓", failed: "✗", left: "↩", abandoned: "–", undone: "⟲", "": "○" };
const WORDS: Record<string, string> = {
  begun: "under way", again: "is tried again", done: "done", failed: "failed", left: "left, the run went back", abandoned: "given up", undone: "undone", "": "not begun",
};
const CLASSES: Record<string, string> = { begun: "warn", again: "warn", done: "good", failed: "bad", undone: "faint", abandoned: "faint", left: "faint" };

export function RunGraph({ state, outline }: { state: Record<string, Json>; outline: Outline[] }) {
  const steps = (state.steps ?? {}) as unknown as Record<string, StepState>;
  const status = String(state.status), reason = String(state.reason ?? "");
  return (
    <section class="run" aria-label="Steps of the run">
      <h2>Run: <span class={status === "done" ? "good" : status === "running" ? "warn" : "bad"}>{status}</span></h2>
      {reason && <p class="bad">{reason}</p>}
      <Parts items={outline} steps={steps} />
    </section>
  );
}

function Parts({ items, steps }: { items: Outline[]; steps: Record<string, StepState> }) {
  return <ol class="steps">{items.map((item, k) => <li key={k}><Part item={item} steps={steps} /></li>)}</ol>;
}

function Part({ item, steps }: { item: Outline; steps: Record<string, StepState> }) {
  if ("parallel" in item) {
    return (
      <div class="parallel">
        <small class="faint">{item.join === "all" ? "all of these at once" : "the first of these"}</small>
        {item.parallel.map((part, k) => <Parts key={k} items={part} steps={steps} />)}
      </div>
    );
  }
  if ("branch" in item) {
    return (
      <div class="branch">
        <small class="faint">if {item.branch}</small>
        <Parts items={item.then} steps={steps} />
        {item.otherwise.length > 0 && <small class="faint">otherwise</small>}
        {item.otherwise.length > 0 && <Parts items={item.otherwise} steps={steps} />}
      </div>
    );
  }
  return <StepLine item={item} now={steps[item.step]} undo={steps[UNDO + item.step]} />;
}

function StepLine({ item, now, undo }: { item: Extract<Outline, { step: string }>; now?: StepState; undo?: StepState }) {
  const state = now?.state ?? "";
  return (
    <div class={`step ${state || "waiting"}`} aria-current={state === "begun" ? "step" : undefined}>
      <span class={CLASSES[state] ?? "faint"} aria-hidden="true">{MARKS[state]}</span> <b>{item.step}</b>{" "}
      <span class={CLASSES[state] ?? "faint"}>{WORDS[state]}{now && now.since_s > 0 && <> {clock(new Date(now.since_s * 1000).toISOString())}</>}</span>
      {now && now.attempt > 1 && <span class="faint"> · try {now.attempt} of {Math.max(item.tries, now.attempt)}</span>}
      {now?.to && <> · <AgentLink agent={now.to} /></>}
      {item.at && <span class="faint"> · at {item.at}</span>}
      {now?.reason && <div class={state === "done" ? "faint" : "bad"}>{now.reason}</div>}
      {item.again_from && <div class="faint">{item.on} sends it back to {item.again_from}</div>}
      {undo && <div class={CLASSES[undo.state] ?? "faint"}>undo{item.undo && ` ${item.undo}`}: {WORDS[undo.state]}{undo.attempt > 1 && `, try ${undo.attempt}`}{undo.reason && `: ${undo.reason}`}</div>}
    </div>
  );
}
