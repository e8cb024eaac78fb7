/** A form for a command, made from its schema, with the answer. */

import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { agentPath, newKey, post, Problem } from "./api";
import { fieldsOf, readFields, type Field } from "./schema";
import { number } from "./show";
import { say } from "./state";
import type { Schema } from "./types";

interface Answer {
  isGood: boolean;
  text: string;
  /** What may be sent again: to agents that were not asked yet, or of which nobody knows whether it was done. */
  left?: Sending;
}

/** A command on its way. An id that was given once is given again, so that it is done once. */
interface Sending {
  body: unknown;
  agents: { agent: string; key: string }[];
}

type Outcome = { state: "accepted" | "refused" | "unknown"; text: string };

const PARALLEL = 8;
const PROGRESS_MS = 250;

/** Sends a command to one or many agents. */
export function CommandForm({ agents, name, schema, onDone }: { agents: string[]; name: string; schema: Schema; onDone: () => void }) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [errors, setErrors] = useState<Record<string, string>>({});
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [done, setDone] = useState<number | null>(null);
  const stop = useRef<AbortController | null>(null);
  const isBusy = done !== null;
  useEffect(() => () => stop.current?.abort(), []);

  const begin = () => {
    const { body, errors: wrong } = readFields(fields, texts);
    setErrors(wrong);
    if (Object.keys(wrong).length) return say("Some fields are wrong");
    void send({ body, agents: agents.map((agent) => ({ agent, key: newKey() })) });
  };
  const send = async (sending: Sending) => {
    const { signal } = (stop.current = new AbortController());
    setDone(0);
    setAnswer(null);
    const found = agents.length === 1 ? await sendOne(sending, name, setErrors) : await sendMany(sending, name, signal, setDone);
    setDone(null);
    setAnswer(found);
    say(`${name}: ${found.text}`);
    onDone();
  };

  return (
    <form
      class="command"
      aria-label={`Send ${name}`}
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        begin();
      }}
    >
      {schema.description && <p class="about">{schema.description}</p>}
      {fields.map((field) => (
        <Input key={field.name} field={field} text={texts[field.name] ?? field.initial} error={errors[field.name]}
          onText={(text) => setTexts({ ...texts, [field.name]: text })} />
      ))}
      <div class="send">
        <button type="submit" class="primary" disabled={isBusy}>
          {isBusy ? (agents.length > 1 ? `Sending, ${number(done)} answered…` : "Sending…") : agents.length === 1 ? `Send ${name}` : `Send ${name} to ${number(agents.length)} agents`}
        </button>
        {isBusy && agents.length > 1 && <button type="button" onClick={() => stop.current?.abort()}>Stop</button>}
        {answer?.left && (
          <button type="button" disabled={isBusy} onClick={() => void send(answer.left!)}>
            {agents.length === 1 ? "Send again with the same id" : `Send to the ${number(answer.left.agents.length)} others, with the same ids`}
          </button>
        )}
      </div>
      {answer && <p class={answer.isGood ? "answer good" : "answer bad"} role="status">{answer.text}</p>}
    </form>
  );
}

async function ask(agent: string, name: string, body: unknown, key: string, setErrors: (errors: Record<string, string>) => void): Promise<Outcome> {
  try {
    const reply = await post<{ position: number }>(`${agentPath(agent)}/${name}`, body, key);
    return { state: "accepted", text: `Accepted, durable at position ${reply.position}` };
  } catch (error) {
    const problem = error as Problem;
    if (problem.errors?.length) {
      setErrors(Object.fromEntries(problem.errors.map((one) => [one.pointer.split("/")[1], one.detail])));
    }
    const text = problem.status === 409 ? `Refused: ${problem.detail}` : problem.detail || problem.title || problem.message;
    const isUnknown = problem.status === 504 || problem.status === 503 || problem.status === 0;
    return { state: isUnknown ? "unknown" : "refused", text };
  }
}

async function sendOne(sending: Sending, name: string, setErrors: (errors: Record<string, string>) => void): Promise<Answer> {
  const [{ agent, key }] = sending.agents;
  const { state, text } = await ask(agent, name, sending.body, key, setErrors);
  return { isGood: state === "accepted", text, left: state === "unknown" ? sending : undefined };
}

/** A few at a time, until all have answered or `signal` ends it. */
async function sendMany(sending: Sending, name: string, signal: AbortSignal, setDone: (done: number) => void): Promise<Answer> {
  const { body, agents } = sending, reasons = new Map<string, number>(), unknown: Sending["agents"] = [];
  let next = 0, accepted = 0, answered = 0;
  const work = async () => {
    while (next < agents.length && !signal.aborted) {
      const one = agents[next++];
      const { state, text } = await ask(one.agent, name, body, one.key, () => {});
      answered++;
      if (state === "accepted") accepted++;
      else reasons.set(text, (reasons.get(text) ?? 0) + 1);
      if (state === "unknown") unknown.push(one);
    }
  };
  const timer = setInterval(() => setDone(answered), PROGRESS_MS);
  await Promise.all(Array.from({ length: PARALLEL }, work));
  clearInterval(timer);
  const others = [...reasons].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([text, count]) => `${number(count)}: ${text}`);
  const left = [...unknown, ...agents.slice(next)];
  const texts = [`${number(accepted)} of ${number(agents.length)} accepted`, ...others];
  if (next < agents.length) texts.push(`stopped: ${number(agents.length - next)} were not asked`);
  return { isGood: accepted === agents.length, text: texts.join("; "), left: left.length ? { body, agents: left } : undefined };
}

function Input({ field, text, error, onText }: { field: Field; text: string; error?: string; onText: (text: string) => void }) {
  const id = useId();
  const { schema } = field;
  const common = { id, "aria-invalid": Boolean(error), "aria-describedby": `${id}-about`, required: field.isRequired };
  const onInput = (event: Event) => onText((event.currentTarget as HTMLInputElement).value);
  let control;
  if (field.control === "boolean" && !field.isNullable) {
    control = <input {...common} required={false} type="checkbox" checked={text === "true"} onChange={() => onText(text === "true" ? "false" : "true")} />;
  } else if (field.control === "choice" || field.control === "boolean") {
    const choices = field.control === "boolean" ? ["true", "false"] : field.choices.map((one) => JSON.stringify(one));
    control = (
      <select {...common} value={text} onChange={onInput}>
        {(!field.isRequired || field.isNullable || !text) && <option value="">–</option>}
        {choices.map((one) => <option key={one} value={one}>{one.replace(/^"(.*)"$/, "$1")}</option>)}
      </select>
    );
  } else if (field.control === "json") {
    control = <textarea {...common} rows={3} spellcheck={false} value={text} onInput={onInput} placeholder="JSON" />;
  } else {
    const isNumber = field.control !== "text";
    control = (
      <input {...common} type={isNumber ? "number" : "text"} step={field.control === "integer" ? 1 : "any"} min={schema.minimum} max={schema.maximum}
        maxLength={schema.maxLength} value={text} onInput={onInput} autocomplete="off" placeholder={field.isNullable ? "none" : ""} />
    );
  }
  return (
    <div class={field.control === "boolean" && !field.isNullable ? "field check" : "field"}>
      <label for={id}>{field.name}{field.isRequired && <span class="needed" title="needed"> *</span>}</label>
      {control}
      <small id={`${id}-about`} class={error ? "bad" : ""}>{error ?? field.about}</small>
    </div>
  );
}
