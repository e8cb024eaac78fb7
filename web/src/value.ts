/** A value that components watch. */

import { useEffect, useState } from "preact/hooks";

export class Value<T> {
  private watchers = new Set<() => void>();

  constructor(private current: T) {}

  get(): T {
    return this.current;
  }

  set(next: T): void {
    if (Object.is(next, this.current)) return;
    this.current = next;
    for (const watcher of [...this.watchers]) watcher();
  }

  /** Calls `watcher` after each change; returns what ends that. */
  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }
}

/** The value now; the component is drawn again when it changes. */
export function useValue<T>(value: Value<T>): T {
  const [shown, show] = useState(() => value.get());
  useEffect(() => {
    const update = () => show(() => value.get());
    update(); // It may have changed between drawing and here.
    return value.watch(update);
  }, [value]);
  return shown;
}

/** The time in ms, drawn again every `every_ms`. */
export function useNow(every_ms: number): number {
  const [now, set] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every_ms);
    return () => clearInterval(timer);
  }, [every_ms]);
  return now;
}
