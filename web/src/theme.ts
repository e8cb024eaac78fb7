/** Light or dark: as the system says, until the user chooses. */

import { Value } from "./value";

const KEY = "stigmergy-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = localStorage.getItem(KEY);

export const theme = new Value<"light" | "dark">("light");

function apply(): void {
  const next = chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
  document.documentElement.dataset.theme = next;
  theme.set(next);
}

export function switchTheme(): void {
  chosen = theme.get() === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, chosen);
  apply();
}

system.addEventListener("change", apply);
apply();
