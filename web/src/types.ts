/** What the server sends: the replies of docs/http.md and docs/watching.md that the page reads. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema | boolean;
  enum?: Json[];
  const?: Json;
  anyOf?: Schema[];
  default?: Json;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  $ref?: string;
  $defs?: Record<string, Schema>;
}

export interface MapDeclaration {
  plane: "geo" | "xy";
  heading: boolean;
  trail_s: number;
}

export interface Kind {
  kind: string;
  commands: { name: string; schema: Schema }[];
  events: { name: string; schema: Schema }[];
  map: MapDeclaration | null;
  /** Of the runs of a workflow: the steps of each of its versions. */
  workflow?: Record<string, Outline[]>;
}

/** A part of a workflow: a step, parts at the same time, or one of two parts. */
export type Outline =
  | { step: string; does: string; to: string; tries: number; done?: string; undo?: string; on?: string; again_from?: string; at?: string }
  | { parallel: Outline[][]; join: "all" | "any" }
  | { branch: string; then: Outline[]; otherwise: Outline[] };

/** What a run knows of a step. */
export interface StepState {
  state: "begun" | "again" | "done" | "failed" | "left" | "abandoned" | "undone";
  attempt: number;
  since_s: number;
  to: string;
  reason: string;
}

export interface Page {
  fleet: string;
  version: string;
  mode: "live" | "replay";
  /** The node that answers; empty without a bus. */
  node: string;
  scopes: string[];
  kinds: Kind[];
  layers: { name: string; url: string }[];
  from: string | null;
  to: string | null;
}

/** The map at a moment: arrays of the same length. */
export interface MapAt {
  time: string | null;
  names: [string, number][];
  x: number[];
  y: number[];
  heading: number[];
  colour: string[];
  /** GeoJSON features that agents draw. */
  drawn?: Record<string, Json[]>;
  missing?: MissingPart[];
  troubles?: string[];
}

/** A shard or a node without an answer. */
export interface MissingPart {
  shard?: number;
  node?: string;
  why: string;
}

export interface Effect {
  sink: string;
  sequence: number;
  type: string;
  fields: Json;
  to: string;
  settled: boolean;
}

export interface Entry {
  kind: "event" | "answer" | "effect";
  position: number;
  index: number;
  time: string;
  type: string;
  fields: Json;
  cause: { source: string; command: string; command_id: string };
  effects: Effect[];
  refused: string | null;
}

export interface AgentState {
  agent: string;
  known: boolean;
  shard: number;
  position: number;
  time: string | null;
  stopped: string | null;
  state: Record<string, Json>;
  shared?: SharedField[];
  claims?: ClaimField[];
}

/** A shared field, and who wrote what is in it. `peers` are not told of the past. */
export interface SharedField {
  field: string;
  object: string;
  writers_count: number;
  writers: { replica: string; changes: number; agent?: string; node?: string }[];
  entries_count: number;
  entries: { at: Json[]; replica: string; value?: Json }[];
  peers?: string[];
  lacking?: string[];
  diverged?: boolean;
}

/** A claim. Who else holds and waits is not told of the past. */
export interface ClaimField {
  claim: string;
  resource: string;
  held: boolean;
  token: number;
  until?: string | null;
  asking?: boolean;
  holder?: string;
  queue?: string[];
}

export interface Explained extends AgentState {
  entries: Entry[];
}

export interface FleetEvent {
  /** Together its place in the log; its id also depends on where the stream began. */
  shard: number;
  position: number;
  index: number;
  agent: string;
  type: string;
  time: string;
  fields: Json;
}

/** An event with the moment at which it was kept. */
export interface KeptEvent extends FleetEvent {
  kept: string;
}

export interface Listed {
  agents: { agent: string; shard: number; stopped: string | null; state: Record<string, Json> }[];
  next: string | null;
  missing?: MissingPart[];
}

export interface Letter {
  letter: string;
  agent: string;
  source: string;
  type: string;
  fields: Json;
  error: string;
}

export interface SharedObject {
  object: string;
  live_bytes: number;
  diverged: boolean;
  peers: string[];
  in_step: string[];
  shard?: number;
  /** How long one of the peers is not in step. */
  behind_s?: number;
}

export interface Claimant {
  claimant: string;
  agent: string | null;
  claim: string | null;
  waits_s?: number | null;
}

export interface Resource {
  resource: string;
  holder: Claimant | null;
  token: number | null;
  for_s: number | null;
  queue: Claimant[];
}

export interface Part {
  process: number;
  first_shard: number;
  last_shard: number;
  host?: string | null;
  pid?: number | null;
  agents?: number | null;
  events?: number | null;
  owed?: number | null;
  waiting?: number | null;
  journal_bytes?: number | null;
}

export interface Status {
  up_s: number;
  cpu_s: number;
  memory_peak_bytes: number;
  journal: string;
  journal_bytes: number;
  agents: number;
  events: number;
  commits: number;
  owed: number;
  waiting: number;
  dead_letters: number;
  stopped: Record<string, string>;
  counters: Record<string, number>;
  troubles: string[];
  link: Link;
}

export interface Link {
  state: string;
  why: string;
  owed: number;
  tells: number;
  members: number;
}

/** The figures of the Fleet panel, once a second. What a fleet does not have is absent. */
export interface Figures {
  time: string;
  status: Status;
  rates: { events?: number; commits?: number };
  latencies?: Record<string, { p50_ms: number | null; p99_ms: number | null }>;
  lag?: Record<string, number>;
  mailbox: number;
  shed?: Record<string, number>;
  refused?: Record<string, number>;
  failed?: Record<string, number>;
  letters?: Letter[];
  members?: { name: string; state: string; since?: string | null }[];
  objects?: SharedObject[];
  resources?: Resource[];
  incidents?: { severity: string; text: string; since?: string | null }[];
  parts?: Part[];
  moves?: { time: string; text: string }[];
  missing?: string[];
  servers?: Server[];
  /** How many there are of what has a list, also those that are not in it. */
  counts?: Record<string, number>;
  /** The lists that could not be read, and why. */
  unread?: Record<string, string>;
}

export interface Server {
  name: string;
  is_up: boolean;
  leads?: boolean;
  version?: string;
  store_bytes?: number | null;
  store_bytes_max?: number | null;
  error?: string;
}
