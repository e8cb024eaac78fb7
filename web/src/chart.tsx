/** A small chart of the last minutes. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import { theme as themeValue } from "./theme";
import { useValue } from "./value";

export interface Series {
  label: string;
  colour: string;
}

/** `data`: times in seconds, then one list for each series. `about` says to screen readers what the chart shows. */
export function Chart({ data, series, unit, about }: { data: (number | null)[][]; series: Series[]; unit: string; about: string }) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null);
  const look = useValue(themeValue);
  useEffect(() => {
    const styles = getComputedStyle(document.documentElement), frame = box.current!;
    const colour = (name: string) => styles.getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const made = new uPlot(
      {
        width: frame.clientWidth,
        height: 130,
        legend: { show: false },
        cursor: { show: false },
        scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.15 : 1] } },
        axes: [
          { ...axis, size: 22, values: (_, ticks) => ticks.map((one) => new Date(one * 1000).toISOString().slice(11, 19)), space: 80 },
          { ...axis, size: 54, values: (_, ticks) => ticks.map((one) => `${one >= 10_000 ? `${one / 1000}k` : one}${unit}`) },
        ],
        series: [{}, ...series.map((one) => ({ label: one.label, stroke: colour(one.colour), width: 1.5, points: { show: false } }))],
      },
      data as uPlot.AlignedData,
      frame,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: frame.clientWidth, height: 130 }));
    observer.observe(frame);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [look, series.map((one) => one.label).join()]);
  useEffect(() => plot.current?.setData(data as uPlot.AlignedData), [data]);
  return (
    <div>
      <div class="chart" ref={box} role="img" aria-label={about} />
      <div class="keys" aria-hidden="true">
        {series.map((one) => <span key={one.label}><i style={{ background: `var(${one.colour})` }} />{one.label}</span>)}
      </div>
    </div>
  );
}
