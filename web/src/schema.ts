/** A form for a JSON Schema: which control a field gets, and what its content means. Pure. */

import type { Json, Schema } from "./types";

export type Control = "text" | "number" | "integer" | "boolean" | "choice" | "json";

export interface Field {
  name: string;
  about: string;
  control: Control;
  choices: Json[];
  isRequired: boolean;
  /** Whether empty means null. */
  isNullable: boolean;
  schema: Schema;
  /** What it begins with. */
  initial: string;
}

export function resolve(schema: Schema, root: Schema): Schema {
  for (let depth = 0; schema.$ref && depth < 8; depth++) {
    const name = schema.$ref.split("/").pop()!;
    schema = root.$defs?.[name] ?? {};
  }
  return schema;
}

/** The fields of an object's schema, in its order. What has no control of its own is written as JSON. */
export function fieldsOf(root: Schema): Field[] {
  const required = new Set(root.required ?? []);
  return Object.entries(resolve(root, root).properties ?? {}).map(([name, given]) => {
    let schema = resolve(given, root);
    const about = given.description ?? schema.description ?? "";
    const options = (schema.anyOf ?? []).map((one) => resolve(one, root));
    const others = options.filter((one) => one.type !== "null");
    const isNullable = others.length < options.length;
    if (options.length && others.length === 1) schema = others[0];
    const control = controlOf(schema);
    const start = given.default ?? schema.default;
    const initial = start === undefined || start === null ? (control === "boolean" && !isNullable ? "false" : "")
      : control === "json" || control === "choice" || typeof start === "object" ? JSON.stringify(start) : String(start);
    return { name, about, control, choices: choicesOf(schema), isRequired: required.has(name), isNullable, schema, initial };
  });
}

function choicesOf(schema: Schema): Json[] {
  return schema.enum ?? (schema.const !== undefined ? [schema.const] : []);
}

function controlOf(schema: Schema): Control {
  if (choicesOf(schema).length) return "choice";
  switch (schema.type) {
    case "string": return "text";
    case "number": return "number";
    case "integer": return "integer";
    case "boolean": return "boolean";
    default: return "json";
  }
}

/** What a control's content means: a value, or undefined for a field to leave out. Throws an Error that says what is wrong. */
export function readField(field: Field, text: string): Json | undefined {
  if (text === "" && !(field.control === "text" && field.isRequired && !field.isNullable)) {
    if (field.isNullable) return null;
    if (!field.isRequired) return undefined;
    throw new Error("a value is needed");
  }
  switch (field.control) {
    case "text": return text;
    case "boolean": return text === "true";
    case "choice": return JSON.parse(text) as Json;
    case "number":
    case "integer": {
      const value = Number(text);
      if (!Number.isFinite(value)) throw new Error("give a number");
      if (field.control === "integer" && !Number.isInteger(value)) throw new Error("give a whole number");
      return value;
    }
    case "json":
      try {
        return JSON.parse(text) as Json;
      } catch {
        throw new Error("this is no JSON");
      }
  }
}

/** All fields, or the errors by name. */
export function readFields(fields: Field[], texts: Record<string, string>): { body: Record<string, Json>; errors: Record<string, string> } {
  const body: Record<string, Json> = {}, errors: Record<string, string> = {};
  for (const field of fields) {
    try {
      const value = readField(field, texts[field.name] ?? field.initial);
      if (value !== undefined) body[field.name] = value;
    } catch (error) {
      errors[field.name] = (error as Error).message;
    }
  }
  return { body, errors };
}
