// How figures, times and bytes are spelled.

export const num = n => Math.round(n).toLocaleString("en-US");

export function dur(us) {
  if (us < 1000) return Math.round(us) + " µs";
  if (us < 1e6) return (us < 1e4 ? (us / 1e3).toFixed(1) : Math.round(us / 1e3)) + " ms";
  return us < 6e7 ? (us / 1e6).toFixed(us < 1e7 ? 2 : 0) + " s" : Math.round(us / 6e7) + " min";
}

export function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 1024 && at < 4; at++) bytes /= 1024;
  return (at === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)) + " " + units[at];
}

export const waits = n => n === 1 ? "1 wait" : num(n) + " waits";
export const clients = n => n === 1 ? "1 client" : num(n) + " clients";

const two = n => String(n).padStart(2, "0");

/** A time of day in the browser's zone. */
export function clock(ms, seconds) {
  const t = new Date(ms);
  return two(t.getHours()) + ":" + two(t.getMinutes()) + (seconds ? ":" + two(t.getSeconds()) : "");
}

/** The day of a time, if it is not today. */
export function day(ms) {
  const t = new Date(ms), now = new Date();
  if (t.toDateString() === now.toDateString()) return "";
  const before = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  if (t.toDateString() === before.toDateString()) return "yesterday ";
  return t.getFullYear() + "-" + two(t.getMonth() + 1) + "-" + two(t.getDate()) + " ";
}

/** The browser's zone: its name, and how far it is from UTC at a time. */
export function zone(ms) {
  const minutes = -new Date(ms).getTimezoneOffset(), abs = Math.abs(minutes);
  const shift = minutes ? (minutes > 0 ? "+" : "−") + Math.floor(abs / 60) + (abs % 60 ? ":" + two(abs % 60) : "") : "";
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
  return (name && name !== "UTC" ? name + " (UTC" + shift + ")" : "UTC" + shift);
}

// Characters that control a terminal, or change the direction of what is around them.
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const hex = (n, width) => n.toString(16).padStart(width, "0");
const NAMED = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const escape = c => NAMED[c] || (c < "\u0100" ? "\\x" + hex(c.charCodeAt(0), 2) : "\\u" + hex(c.charCodeAt(0), 4));

export const visible = text => text.replace(CONTROLS, escape);
/** The same, for a text of several lines. */
export const visibleLines = text => text.replace(CONTROLS, c => c === "\n" || c === "\t" ? c : escape(c));

/** The bytes of a word as the server sent it: a text, or base64. */
export function bytesOf(word) {
  if (word && word.cut !== undefined) word = word.cut;
  if (word && word.b64 !== undefined) return Uint8Array.from(atob(word.b64), c => c.charCodeAt(0));
  return new TextEncoder().encode(String(plain(word)));
}

/** A number or a text that JSON could not hold by itself. */
function plain(word) {
  if (word && typeof word === "object") return word.int ?? word.double ?? word.error ?? "";
  return word ?? "";
}

/** A word on one line, with everything unusual escaped. */
export function shown(word) {
  if (word === null || word === undefined) return "";
  if (word.cut !== undefined) return shown(word.cut) + "… (" + size(word.bytes) + ")";
  if (word.b64 !== undefined) {
    return [...bytesOf(word)].map(b => b > 31 && b < 127 && b !== 92 ? String.fromCharCode(b) : "\\x" + hex(b, 2)).join("");
  }
  return visible(String(plain(word)));
}

/** Sixteen bytes a line. */
export function hexDump(bytes, from) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const text = part.map(b => b > 31 && b < 127 ? String.fromCharCode(b) : ".").join("");
    lines.push(hex(from + at, 8) + "  " + part.map(b => hex(b, 2)).join(" ").padEnd(48) + "  " + text);
  }
  return lines.join("\n");
}

/** An id for a word, to compare and to put in an address. */
export const idOf = word => typeof word === "string" ? "t" + word : "b" + word.b64;
export const wordOf = id => id[0] === "b" ? { b64: id.slice(1) } : id.slice(1);

export const least = (list, or = 0) => list.reduce((a, b) => b !== null && b < a ? b : a, Infinity) === Infinity ? or : list.reduce((a, b) => b !== null && b < a ? b : a, Infinity);
export const most = (list, or = 0) => { const m = list.reduce((a, b) => b !== null && b > a ? b : a, -Infinity); return m === -Infinity ? or : m; };
