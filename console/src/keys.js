// Keys by SCAN, and one value in pages. No value is ever fetched whole.
import { useEffect, useState } from "preact/hooks";
import { command, commands, pairs } from "./api.js";
import { html } from "./html.js";
import { link, useLoaded, usePlace, useShared } from "./state.js";
import { bytesOf, dur, hexDump, idOf, num, shown, size, visibleLines, wordOf } from "./text.js";

const BATCH = 50;
const PAGE = 100;
const CHUNK = 65536;
const TYPES = ["", "string", "list", "hash", "set", "zset", "stream"];

const life = ms => ms === -1 ? "stays" : ms < 0 ? "gone" : "for " + dur(ms * 1000);

export function Keys() {
  const { me } = useShared();
  const at = usePlace();
  const db = +at.with.get("db") || 0, pattern = at.with.get("match") || "", type = at.with.get("type") || "", id = at.with.get("key");
  const go = changes => {
    const next = { db, match: pattern, type, key: id || "", ...changes };
    location.hash = link("keys", Object.entries(next).filter(([, value]) => value));
  };
  const search = event => { event.preventDefault(); go({ match: event.currentTarget.elements.match.value, key: "" }); };
  return html`<h1 class="hide">Keys</h1><div class="split">
    <section class="panel" aria-label="Keys">
      <form class="top" onSubmit=${search}>
        <label>Database <select value=${db} onChange=${e => go({ db: e.target.value, key: "" })}>${Array.from({ length: Math.min(me.databases, 256) }, (_, n) => html`<option value=${n}>${n}</option>`)}</select></label>
        <label class="grow">Pattern <input name="match" key=${pattern} defaultValue=${pattern} placeholder="*" autocomplete="off" spellcheck=${false}/></label>
        <label>Type <select value=${type} onChange=${e => go({ type: e.target.value, key: "" })}>${TYPES.map(name => html`<option value=${name}>${name || "all"}</option>`)}</select></label>
        <button type="submit" class="main">Search</button>
      </form>
      <${List} key=${db + "\n" + pattern + "\n" + type} ...${{ db, pattern, type, id, go }}/>
    </section>
    <section class="panel" aria-label="Value">${id ? html`<${Value} key=${db + id} db=${db} id=${id} gone=${() => go({ key: "" })}/>` : html`<p class="soft pad">A key that is chosen is shown here.</p>`}</section>
  </div>`;
}

function List({ db, pattern, type, id, go }) {
  const [state, become] = useState({ cursor: "0", keys: [], seen: 0, total: null, busy: false, done: false, error: null });
  const more = async () => {
    become(was => ({ ...was, busy: true, error: null }));
    try {
      let { cursor, keys, seen, total } = state;
      total = total ?? await command(["DBSIZE"], db).catch(() => null);
      const found = [], ended = Date.now() + 2000;
      let done = false;
      // A pattern that few keys fit asks for further pages, for two seconds at most.
      do {
        const words = ["SCAN", cursor, "COUNT", pattern || type ? "1000" : String(BATCH)];
        if (pattern) words.push("MATCH", pattern);
        if (type) words.push("TYPE", type);
        const [next, some] = await command(words, db);
        cursor = String(next);
        seen += pattern || type ? 1000 : some.length;
        found.push(...some);
        done = cursor === "0";
      } while (!done && found.length < BATCH && Date.now() < ended);
      const known = new Set(keys.map(key => key.id));
      const fresh = [...new Map(found.map(word => [idOf(word), { id: idOf(word), word }])).values()].filter(key => !known.has(key.id));
      const details = await commands(fresh.flatMap(({ word }) => [["TYPE", word], ["PTTL", word], ["MEMORY", "USAGE", word]]), db);
      fresh.forEach((key, n) => { [key.type, key.ttl, key.bytes] = details.slice(3 * n, 3 * n + 3); });
      become({ cursor, keys: [...keys, ...fresh], seen, total, done, busy: false, error: null });
    } catch (error) {
      become(was => ({ ...was, busy: false, error }));
    }
  };
  useEffect(() => { more(); }, []);
  const { keys, total, seen, done, busy, error } = state;
  const plain = value => value && value.error !== undefined ? "–" : value;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list"><thead><tr><th>Key</th><th>Type</th><th>Lives</th><th class="num">Memory</th></tr></thead><tbody>
    ${keys.map(key => html`<tr key=${key.id} class=${"rec" + (key.id === id ? " on" : "")} onClick=${() => go({ key: key.id })}>
      <td class="cut wide"><button type="button" class="mono" title=${shown(key.word)} aria-pressed=${key.id === id}>${shown(key.word) || "(empty)"}</button></td>
      <td>${shown(plain(key.type))}</td><td>${typeof key.ttl === "number" ? life(key.ttl) : "–"}</td><td class="num">${typeof key.bytes === "number" ? size(key.bytes) : "–"}</td></tr>`)}
    ${keys.length || busy ? null : html`<tr><td colspan="4" class="soft">${error ? "" : "No key fits."}</td></tr>`}
  </tbody></table></div>
  ${error ? html`<p class="bad pad" role="alert">${error.message}</p>` : null}
  <p class="pad soft" aria-live="polite">${num(keys.length)} ${keys.length === 1 ? "key" : "keys"} shown${total === null ? "" : done ? ", all " + num(total) + " looked at" : ", about " + num(Math.min(seen, total)) + " of " + num(total) + " looked at"}
    ${done ? null : html` <button type="button" class="main" disabled=${busy} onClick=${more}>${busy ? "…" : "More"}</button>`}</p>`;
}

function Value({ db, id, gone }) {
  const { me } = useShared();
  const word = wordOf(id);
  const [{ value, error, loading }, again] = useLoaded(() => commands([["TYPE", word], ["PTTL", word], ["MEMORY", "USAGE", word], ["OBJECT", "ENCODING", word]], db), []);
  if (error) return html`<p class="bad pad">${error.message}</p>`;
  if (loading) return html`<p class="soft pad">…</p>`;
  const [type, ttl, bytes, encoding] = value;
  if (type?.error) return html`<p class="bad pad">${type.error}</p>`;
  const Shown = VALUES[type];
  const remove = async () => {
    if (!confirm("Delete " + shown(word) + "?")) return;
    const [reply] = await commands([["UNLINK", word]], db);
    if (reply?.error) alert(reply.error); else gone();
  };
  return html`<div class="top"><h2 class="mono break">${shown(word)}</h2>
      <span class="end"><button type="button" class="tool" onClick=${again}>Again</button> ${me.writes === "yes" ? html`<button type="button" class="tool bad" onClick=${remove}>Delete</button>` : null}</span></div>
    <p class="pad soft">${type === "none" ? "There is no such key." : [type, encoding?.error ? null : shown(encoding), typeof ttl === "number" ? (ttl === -1 ? "does not expire" : "lives " + life(ttl)) : null, typeof bytes === "number" ? size(bytes) : null].filter(Boolean).join(" · ")}</p>
    ${Shown ? html`<${Shown} db=${db} word=${word}/>` : type === "none" ? null : html`<p class="pad soft">This type has no view of its own. The command prompt shows it.</p>`}`;
}

/** Pages of a value: `load(from)` gives rows, where the next page begins (null: nowhere), and how many there are. */
function Pages({ load, head }) {
  const [pages, setPages] = useState([]), [wrong, setWrong] = useState(null), [busy, setBusy] = useState(false);
  const more = async () => {
    setBusy(true);
    try {
      const page = await load(pages.length ? pages[pages.length - 1].next : null);
      setPages(was => [...was, page]);
      setWrong(null);
    } catch (error) { setWrong(error.message); }
    setBusy(false);
  };
  useEffect(() => { more(); }, []);
  const rows = pages.flatMap(page => page.rows), last = pages[pages.length - 1];
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list"><thead><tr>${head.map(name => html`<th>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row, n) => html`<tr key=${n}>${row.map(cell => html`<td class="mono value">${cell}</td>`)}</tr>`)}</tbody></table></div>
    ${wrong ? html`<p class="bad pad" role="alert">${wrong}</p>` : null}
    <p class="pad soft">${num(rows.length)} of ${last ? num(last.total) : "…"} shown ${last && last.next === null ? null : html`<button type="button" class="main" disabled=${busy} onClick=${more}>More</button>`}</p>`;
}

const cell = word => html`<span title=${shown(word).slice(0, 2000)}>${shown(word).slice(0, 400)}</span>`;

/** Replies of two commands; the first error is thrown. */
async function both(a, b, db) {
  const replies = await commands([a, b], db);
  const wrong = replies.find(reply => reply?.error);
  if (wrong) throw new Error(wrong.error);
  return replies;
}

const byRank = (count, range, pairsOf, head) => ({ db, word }) => html`<${Pages} head=${head} load=${async from => {
  from = from || 0;
  const [total, list] = await both([count, word], range(word, from, from + PAGE - 1), db);
  const rows = pairsOf(list, from), next = from + PAGE < total ? from + PAGE : null;
  return { rows, next, total };
}}/>`;

const byCursor = (count, scan, rowsOf, head) => ({ db, word }) => html`<${Pages} head=${head} load=${async cursor => {
  const [total, [next, list]] = await both([count, word], [scan, word, cursor || "0", "COUNT", String(PAGE)], db);
  return { rows: rowsOf(list), next: String(next) === "0" ? null : String(next), total };
}}/>`;

// RESP3 gives scores beside members in lists of two.
const scored = list => list.length && Array.isArray(list[0]) ? list : pairs(list);

function Stream({ db, word }) {
  return html`<${Pages} head=${["Id", "Fields"]} load=${async last => {
    const [total, list] = await both(["XLEN", word], ["XRANGE", word, last ? "(" + last : "-", "+", "COUNT", String(PAGE)], db);
    const rows = list.map(([id, fields]) => [id, html`<span>${pairs(fields).map(([name, value]) => html`<span class="field"><b>${shown(name).slice(0, 100)}</b> ${shown(value).slice(0, 400)}</span>`)}</span>`]);
    return { rows, next: list.length < PAGE ? null : shown(list[list.length - 1][0]), total };
  }}/>`;
}

function Text({ db, word }) {
  const [from, setFrom] = useState(0), [form, setForm] = useState(null);
  const [{ value, error }] = useLoaded(() => both(["STRLEN", word], ["GETRANGE", word, String(from), String(from + CHUNK - 1)], db), [from]);
  if (error) return html`<p class="bad pad">${error.message}</p>`;
  if (!value) return html`<p class="pad soft">…</p>`;
  const [length, part] = value, isText = typeof part === "string" || typeof part === "number";
  const json = isText && length <= CHUNK ? parsed(String(part)) : undefined;
  const as = form || (json !== undefined && /^\s*[[{]/.test(part) ? "JSON" : isText ? "text" : "hex");
  const body = as === "hex" ? hexDump(bytesOf(part), from) : as === "JSON" && json !== undefined ? visibleLines(JSON.stringify(json, null, 2)) : isText ? visibleLines(String(part)) : shown(part);
  const choices = ["text", "hex", ...(json !== undefined ? ["JSON"] : [])];
  return html`<div class="top"><span class="ranges" role="group" aria-label="Form">${choices.map(name => html`<button type="button" aria-pressed=${as === name} onClick=${() => setForm(name)}>${name}</button>`)}</span>
      <span class="soft">${length > CHUNK ? "bytes " + num(from) + " to " + num(Math.min(length, from + CHUNK)) + " of " + num(length) : num(length) + " bytes"}</span>
      <span class="end">${from > 0 ? html`<button type="button" class="main" onClick=${() => setFrom(Math.max(0, from - CHUNK))}>Before</button>` : null} ${from + CHUNK < length ? html`<button type="button" class="main" onClick=${() => setFrom(from + CHUNK)}>Next</button>` : null}</span></div>
    <pre class="mono" tabindex="0" aria-label="The value">${body}</pre>`;
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return undefined; }
}

const VALUES = {
  string: Text,
  list: byRank("LLEN", (word, a, b) => ["LRANGE", word, String(a), String(b)], (list, from) => list.map((item, n) => [num(from + n), cell(item)]), ["Place", "Element"]),
  zset: byRank("ZCARD", (word, a, b) => ["ZRANGE", word, String(a), String(b), "WITHSCORES"], list => scored(list).map(([member, score]) => [shown(score), cell(member)]), ["Score", "Member"]),
  hash: byCursor("HLEN", "HSCAN", list => pairs(list).map(([field, value]) => [cell(field), cell(value)]), ["Field", "Value"]),
  set: byCursor("SCARD", "SSCAN", list => list.map(member => [cell(member)]), ["Member"]),
  stream: Stream,
};
