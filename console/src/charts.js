// Drawings of history: colours are absolute, so that the same colour means the same in every window.
import { clock, day, dur, most, num, size } from "./text.js";

export const LEFT = 46; // Room for the axis of latency; all charts share it.
const FAST = [.0005, .005, .03, .12, .35];
const SLOW = [.3, 1, 3, 10, 30];
export const M = 60e3, H = 3600e3, DAY = 24 * H;
// Octaves below 16 µs are one row; the row of 1 ms has the number 7.
const FIRST = 5, ROWS = 20, SPLIT = 7;
const rowOf = octave => Math.max(0, octave - FIRST + 1);
const floorOf = row => row ? 16 * 2 ** (row - 1) : 0;

/** Causes: the word of the legend, a short one, whether others are waited for, and what helps. */
export const CAUSES = {
  commit: ["keys of a long commit", "a long commit", 1, "What helps: fewer keys for each run of the script, or another hour. After three lost races a long commit holds writers of its keys for up to 50 ms at a time."],
  loop: ["the event loop", "the event loop", 1, "What helps: smaller commands of this client, or another connection for them; it has a core of its own after its first tenth of a millisecond."],
  lock: ["a lock", "a lock", 1, "What helps: smaller commands on the same keys."],
  race: ["keys that were written", "a race", 1, "What helps: fewer writes to the keys that a long command reads."],
  thread: ["a worker", "a worker", 1, "What helps: more threads for long commands, or fewer of them at once."],
  source: ["a database", "a database", 1, "What helps: look at the database. Cached rows were answered all the time; stale-if-error would have answered these too."],
  log: ["the log's disk", "the disk", 1, "What helps: a faster disk, or appendfsync everysec. Reads of others did not wait."],
  os: ["the processor", "the processor", 1, "What helps: a processor of its own for the server, or a lower priority for the program. The server itself was not busy."],
  crowd: ["many short requests", "a crowd", 1, "What helps: clients that keep their connections."],
  pause: ["CLIENT PAUSE", "a pause", 1, "What helps: a shorter pause."],
  replica: ["a replica", "a replica", 1, "What helps: a shorter time for WAIT, or a replica that is nearer."],
  unknown: ["an unknown cause", "unknown", 1, ""],
  reclaim: ["memory it freed itself", "its own doing", 0, "The client had removed more than may wait to be freed."],
  messages: ["messages it published", "its own doing", 0, "The client had published more than may be under way."],
  socket: ["replies it did not read", "its own doing", 0, "The client did not read its replies."],
};
export const causeOf = name => CAUSES[name] || CAUSES.unknown;
export const ofOthers = waits => Object.keys(CAUSES).filter(name => CAUSES[name][2] && waits[name]);

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colour = name => css("--c-" + (CAUSES[name] ? name : "unknown"));

/** Makes a canvas as sharp as the screen; gives what draws on it, and its size. */
function begin(canvas) {
  const d = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  canvas.width = Math.round(w * d);
  canvas.height = Math.round(h * d);
  const g = canvas.getContext("2d");
  g.setTransform(d, 0, 0, d, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = "11px " + css("--sans");
  return [g, w, h];
}

export const xOf = (t, span, w) => LEFT + (t - span.from) / span.win * (w - LEFT);
export const tOf = (x, span, w) => span.from + Math.max(0, Math.min(1, (x - LEFT) / (w - LEFT))) * span.win;

const STEPS = [10e3, 30e3, M, 2 * M, 5 * M, 10 * M, 15 * M, 30 * M, H, 2 * H, 3 * H, 4 * H, 6 * H];
function ticks(g, w, y, span) {
  const want = (w - LEFT) / 76, step = STEPS.find(s => span.win / s <= want) || 6 * H;
  g.fillStyle = css("--soft");
  g.textAlign = "center";
  g.textBaseline = "alphabetic";
  // Round times of the browser's zone, whose distance from UTC may change within the window.
  const shift = t => new Date(t).getTimezoneOffset() * M;
  for (let t = Math.ceil((span.from - shift(span.from)) / step) * step + shift(span.from); t < span.from + span.win; t += step) {
    const x = xOf(t, span, w);
    if (x > LEFT + 14 && x < w - 14) g.fillText(clock(t, step < M), x, y);
  }
}

function selection(g, w, h, span, a, b) {
  const x0 = Math.max(LEFT, xOf(a, span, w)), x1 = Math.min(w, xOf(b, span, w));
  if (x1 <= LEFT || x0 >= w) return;
  const wide = Math.max(2, x1 - x0);
  g.fillStyle = css("--selbg");
  g.fillRect(x0, 0, wide, h);
  g.strokeStyle = css("--sel");
  g.lineWidth = 1.25;
  g.strokeRect(x0 + .5, .5, wide - 1, h - 1);
  g.lineWidth = 1;
}

const base = (g, w, y) => { g.strokeStyle = css("--line"); g.beginPath(); g.moveTo(LEFT, y + .5); g.lineTo(w, y + .5); g.stroke(); };
const sums = table => Array.from({ length: table.n }, (_, i) => ofOthers(table.waits).reduce((sum, k) => sum + (table.waits[k].us[i] || 0), 0));

/** Waiting time of a day by cause, with the window marked. */
export function drawDay(canvas, table, span) {
  const [g, w, h] = begin(canvas), foot = h - 16, all = { from: table.from_ms, win: table.n * table.step_ms };
  const total = sums(table), max = most(total, 1) || 1, wide = (w - LEFT) / table.n;
  base(g, w, foot);
  // Square root, so that small times are seen beside large ones; each bar's parts keep their share of it.
  total.forEach((sum, i) => {
    if (!sum) return;
    let y = foot;
    const tall = Math.max(1, Math.sqrt(sum / max) * (foot - 3));
    for (const k of ofOthers(table.waits)) {
      const v = (table.waits[k].us[i] || 0) / sum * tall;
      g.fillStyle = colour(k);
      g.fillRect(LEFT + i * wide, y - v, Math.max(1.5, wide - 1), v);
      y -= v;
    }
  });
  const a = xOf(span.from, all, w), b = Math.max(a + 5, Math.min(w, xOf(span.from + span.win, all, w)));
  g.fillStyle = css("--selbg");
  g.fillRect(a, 0, b - a, foot);
  g.strokeStyle = css("--sel");
  g.strokeRect(a + .5, .5, b - a - 1, foot - 1);
  ticks(g, w, h - 3, all);
  return max / table.step_ms * 1000;
}

/** The latency of all requests. */
export function drawHeat(canvas, table, span, a, b) {
  const [g, w, h] = begin(canvas), foot = 17, tall = (h - foot) / ROWS;
  const colours = name => [0, 1, 2, 3, 4, 5].map(i => css("--" + name + i));
  const fast = colours("h"), slow = colours("s"), level = (v, steps) => steps.filter(s => v >= s).length;
  const wide = (w - LEFT) * table.step_ms / span.win;
  for (let i = 0; i < table.n; i++) {
    if (table.heat[0][i] === null) continue;
    const rows = rowsOf(table, i), all = rows.reduce((sum, n) => sum + n, 0);
    const x = xOf(table.from_ms + i * table.step_ms, span, w), x0 = Math.max(LEFT, x);
    rows.forEach((n, row) => {
      if (!n || x + wide < LEFT) return;
      g.fillStyle = row >= SPLIT ? slow[level(n / table.step_ms * 1000, SLOW)] : fast[level(n / all, FAST)];
      g.fillRect(x0, h - foot - (row + 1) * tall, Math.max(.5, x + wide - x0 + .3), tall - 1);
    });
  }
  const y = h - foot - SPLIT * tall;
  g.strokeStyle = css("--line2");
  g.setLineDash([3, 3]);
  g.beginPath();
  g.moveTo(LEFT, y);
  g.lineTo(w, y);
  g.stroke();
  g.setLineDash([]);
  for (const mark of table.marks) {
    const x = xOf(mark.time_ms, span, w);
    if (x <= LEFT || x >= w) continue;
    g.fillStyle = css("--soft");
    g.beginPath();
    g.moveTo(x - 4, 0);
    g.lineTo(x + 4, 0);
    g.lineTo(x, 6);
    g.fill();
    g.fillRect(x - .5, 6, 1, h - foot - 8 - SPLIT * tall);
  }
  g.fillStyle = css("--soft");
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const [row, name] of [[1, "16 µs"], [4, "128 µs"], [7, "1 ms"], [10, "8 ms"], [13, "65 ms"], [17, "1 s"]]) g.fillText(name, LEFT - 7, h - foot - row * tall);
  ticks(g, w, h - 3, span);
  selection(g, w, h - foot, span, a, b);
}

function rowsOf(table, i) {
  const rows = new Array(ROWS).fill(0);
  table.heat.forEach((octave, at) => { rows[Math.min(ROWS - 1, rowOf(at))] += octave[i] || 0; });
  return rows;
}

/** A sentence about a place of the heat map; null: nothing is known of it. */
export function heatAt(canvas, table, span, x, y) {
  const w = canvas.clientWidth, h = canvas.clientHeight, t = tOf(x, span, w);
  const mark = table.marks.find(m => Math.abs(xOf(m.time_ms, span, w) - x) < 6);
  if (mark) return clock(mark.time_ms) + " " + mark.text;
  const i = Math.floor((t - table.from_ms) / table.step_ms), row = Math.floor((h - 17 - y) / ((h - 17) / ROWS));
  if (x < LEFT || i < 0 || i >= table.n || row < 0 || row >= ROWS || table.heat[0][i] === null) return null;
  const rows = rowsOf(table, i), to = row < ROWS - 1 ? " to " + dur(floorOf(row + 1)) : " and more";
  return clock(table.from_ms + i * table.step_ms, true) + ", " + (row ? dur(floorOf(row)) : "0") + to + ": " + num(rows[row]) + " of " + num(rows.reduce((a, b) => a + b, 0));
}

/** Waits by cause. */
export function drawCauses(canvas, table, span, a, b) {
  const [g, w, h] = begin(canvas), foot = 2, wide = (w - LEFT) * table.step_ms / span.win;
  // At least 10 ms a second, so that calm looks calm.
  const max = Math.max(10, most(sums(table)) / table.step_ms);
  base(g, w, h - foot);
  for (let i = 0; i < table.n; i++) {
    let y = h - foot;
    const left = xOf(table.from_ms + i * table.step_ms, span, w), x = Math.max(LEFT, left);
    if (left + wide < LEFT) continue;
    for (const k of ofOthers(table.waits)) {
      const v = (table.waits[k].us[i] || 0) / table.step_ms / max * (h - foot - 4);
      if (!v) continue;
      g.fillStyle = colour(k);
      g.fillRect(x, y - v, Math.max(.5, left + wide - x - (wide > 4 ? 1 : 0)), v);
      y -= v;
    }
  }
  g.fillStyle = css("--soft");
  g.textAlign = "right";
  g.textBaseline = "top";
  g.fillText(Math.round(max).toLocaleString("en-US"), LEFT - 7, 2);
  g.fillText("ms/s", LEFT - 7, 15);
  selection(g, w, h - foot, span, a, b);
}

/** A line of one figure over the window; a gap stays a gap. */
export function drawLine(canvas, data, table, span, a, b) {
  const [g, w, h] = begin(canvas), known = data.filter(v => v !== null), lo = Math.min(...known), hi = Math.max(...known);
  const x = t => (t - span.from) / span.win * w, y = v => h - 3 - (v - lo) / ((hi - lo) || 1) * (h - 6);
  g.fillStyle = css("--selbg");
  const x0 = Math.max(0, x(a));
  g.fillRect(x0, 0, Math.max(2, x(b) - x0), h);
  g.strokeStyle = css("--soft");
  g.lineWidth = 1.25;
  g.beginPath();
  data.forEach((v, i) => {
    if (v === null) return;
    const at = [x(table.from_ms + (i + .5) * table.step_ms), y(v)];
    if (i && data[i - 1] !== null) g.lineTo(...at); else g.moveTo(...at);
  });
  g.stroke();
}

/** The six vital signs: name, values over the window, how a value is spelled. */
export function vitals(table) {
  const of = name => table.series[name] || new Array(table.n).fill(null);
  const each = (names, f) => of(names[0]).map((v, i) => v === null ? null : f(...names.map(name => of(name)[i] || 0), i));
  const busy = table.series.busy || [];
  const rate = each(["ops"], ops => ops / table.step_ms * 1000);
  const known = of("ops");
  return [
    ["Requests a second", rate, num],
    ["Busiest event loop", known.map((v, i) => v === null ? null : most(busy.map(loop => loop[i] ?? 0)) / 10), v => Math.round(v) + " %"],
    ["Memory", of("memory"), size],
    ["Hit ratio", each(["hits", "misses"], (hits, misses) => hits + misses ? hits / (hits + misses) * 100 : null), v => v.toFixed(1) + " %"],
    ["Log not yet on disk", of("log_pending_bytes"), size],
    ["Furthest replica", of("replicas").map((n, i) => n ? of("replica_lag_ms")[i] : null), v => Math.round(v) + " ms"],
  ];
}

export const moment = t => day(t) + clock(t);
