/** Colours of agents. A colour's name that says how an agent is has a meaning; a CSS colour is itself; the others get
 * one of a palette that colour-blind people can tell apart. */

const MEANINGS: [string, string[]][] = [
  ["bad", ["bad", "error", "failed", "critical", "lost", "stopped", "down", "dead", "emergency", "alarm", "red"]],
  ["warn", ["low", "warn", "warning", "late", "degraded", "suspect", "busy", "amber", "yellow"]],
  ["ok", ["ok", "good", "normal", "healthy", "active", "up", "green"]],
  ["idle", ["idle", "off", "unknown", "none", "parked", "landed", "grey", "gray"]],
];
/** So many colours has the palette, each clearly another one than those of the meanings. */
const TURNS = 6;
/** Further names of the same meaning are mixed with so much of the text's colour. */
const SHADES = [0, 0.3, 0.55];

/** The meaning of a name: its own, or that of its last word that has one (`all-red`). */
function meaningOf(name: string): string | undefined {
  const find = (word: string) => MEANINGS.find(([, words]) => words.includes(word))?.[0];
  return find(name.toLowerCase()) ?? name.toLowerCase().split(/[^a-z]+/).map(find).filter(Boolean).pop();
}

/** The CSS colour of each name: the same after a reload, and a different one for each. */
export function coloursOf(names: string[], styles: CSSStyleDeclaration): string[] {
  const found = new Map<string, string>(), taken = new Set<string>();
  const of = (mark: string) => styles.getPropertyValue(`--map-${mark}`).trim();
  const claim = (name: string, colour: string): boolean => {
    if (taken.has(colour)) return false;
    taken.add(colour);
    found.set(name, colour);
    return true;
  };
  // A name that is nothing but a meaning comes before one that has it as a word.
  const isWord = (name: string) => (MEANINGS.some(([, words]) => words.includes(name.toLowerCase())) ? 0 : 1);
  for (const name of [...names].sort((a, b) => isWord(a) - isWord(b) || (a < b ? -1 : a > b ? 1 : 0))) {
    const meaning = meaningOf(name);
    if (!meaning && CSS.supports("color", name)) {
      found.set(name, name);
      continue;
    }
    if (meaning && SHADES.some((share) => claim(name, mixed(of(meaning), of("text"), share)))) continue;
    let turn = 0;
    for (const letter of name) turn = (turn * 31 + letter.codePointAt(0)!) >>> 0;
    let tries = 0;
    while (tries < TURNS && !claim(name, of(`turn-${1 + ((turn + tries) % TURNS)}`))) tries++;
    // Beyond the palette: hues as far from each other as they go.
    for (let k = found.size; !found.has(name); k++) claim(name, `hsl(${Math.round(k * 137.5) % 360} ${45 + (k % 3) * 20}% ${40 + (k % 4) * 8}%)`);
  }
  return names.map((name) => found.get(name)!);
}

/** A colour with a share of another. */
function mixed(colour: string, other: string, share: number): string {
  if (!share) return colour;
  const a = rgba(colour), b = rgba(other);
  return `rgb(${[0, 1, 2].map((k) => Math.round(255 * (a[k] * (1 - share) + b[k] * share))).join(" ")})`;
}

const canvas = document.createElement("canvas");
canvas.width = canvas.height = 1;
const context = canvas.getContext("2d", { willReadFrequently: true });

/** A CSS colour as red, green, blue, alpha of 0 to 1. */
export function rgba(colour: string, alpha = 1): [number, number, number, number] {
  if (!context) return [0.5, 0.5, 0.5, alpha];
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = "#808080"; // Stays if the colour cannot be read.
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return [r / 255, g / 255, b / 255, alpha];
}
