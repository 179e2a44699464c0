// Tables of what the server says about itself: memory, slow log, clients, disk, replicas, sources.
import { useState } from "preact/hooks";
import { command, commands, info, pairs, savedAt } from "./api.js";
import { html } from "./html.js";
import { useLoaded, useShared } from "./state.js";
import { Prefixes } from "./prefixes.js";
import { clients, clock, day, dur, num, shown, size } from "./text.js";

export const Problem = ({ error }) => error ? html`<p class="bad pad" role="alert">${error.message || error}</p>` : null;
const Facts = ({ list }) => html`<dl class="facts2">${list.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

// ----- memory ----------------------------------------------------------------------------------------------------------

const KINDS = [
  ["Data", "used_memory_dataset"], ["Clients: what they sent and are still to get", "mem_clients_normal"], ["Replicas", "mem_clients_slaves"],
  ["Log's buffer", "mem_aof_buffer"], ["Replication backlog", "mem_replication_backlog"], ["Scripts and functions", "used_memory_scripts"],
  ["History", "history_bytes"],
];

export function Memory() {
  const [{ value, error }] = useLoaded(async () => info(await command(["INFO", "memory", "evenkeel", "keyspace"])), [], 5000);
  if (!value) return html`<section class="panel"><h1 class="hide">Memory</h1><${Problem} error=${error}/><p class="soft pad">…</p></section>`;
  const of = name => +value[name] || 0, used = of("used_memory"), max = of("maxmemory");
  const parts = KINDS.map(([name, field]) => [name, of(field)]).filter(([, bytes]) => bytes > 0);
  const rest = used - parts.reduce((sum, [, bytes]) => sum + bytes, 0);
  const rows = [...parts, ["The rest: tables, connections, what waits to be freed", Math.max(0, rest)]].sort((a, b) => b[1] - a[1]);
  return html`<h1 class="hide">Memory</h1><section class="panel">
    <div class="top"><h2>${size(used)} in use${max ? " of " + size(max) : ", without a limit"}</h2><span class="soft">${value.maxmemory_policy || ""}, ${size(of("used_memory_rss"))} resident, the most so far ${size(of("used_memory_peak"))}</span></div>
    <${Problem} error=${error}/>
    <div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list"><thead><tr><th>Kind</th><th class="num">Bytes</th><th>Share</th></tr></thead><tbody>
      ${rows.map(([name, bytes]) => html`<tr key=${name}><td class="value">${name}</td><td class="num">${size(bytes)}</td><td><span class="bar" style=${{ width: Math.max(2, bytes / used * 160) + "px" }}></span> ${(bytes / used * 100).toFixed(1)} %</td></tr>`)}
    </tbody></table></div></section>
    <section class="panel"><div class="top"><h2>Databases</h2></div><div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list"><thead><tr><th>Database</th><th class="num">Keys</th><th class="num">That expire</th><th class="num">Mean life</th></tr></thead><tbody>
      ${Object.entries(value).filter(([name]) => /^db\d+$/.test(name)).map(([name, text]) => { const f = Object.fromEntries(text.split(",").map(pair => pair.split("="))); return html`<tr><td><a href=${"#keys?db=" + name.slice(2)}>${name.slice(2)}</a></td><td class="num">${num(+f.keys)}</td><td class="num">${num(+f.expires)}</td><td class="num">${+f.avg_ttl ? dur(f.avg_ttl * 1000) : ""}</td></tr>`; })}
    </tbody></table></div></section>
    <${Prefixes}/>`;
}

// ----- clients ---------------------------------------------------------------------------------------------------------

const COLUMNS = [["id", "Id"], ["name", "Name"], ["addr", "Address"], ["user", "User"], ["cmd", "Last command"], ["age", "Connected"], ["idle", "Idle"], ["tot-mem", "Memory"], ["db", "Db"], ["lib-name", "Library"]];
const NUMBERS = ["id", "age", "idle", "tot-mem", "db"];
const SHOWN = 1000;

export function Clients() {
  const { me } = useShared();
  const [sort, setSort] = useState(["tot-mem", -1]), [filter, setFilter] = useState(""), [limit, setLimit] = useState(SHOWN), [why, setWhy] = useState(null);
  const [{ value, error, loading }, again] = useLoaded(async () => {
    const text = await command(["CLIENT", "LIST"]);
    const lines = String(text?.cut ?? text).split("\n").filter(Boolean);
    if (text?.cut !== undefined) lines.pop();
    return { clients: lines.map(line => Object.fromEntries(line.split(" ").map(pair => { const at = pair.indexOf("="); return [pair.slice(0, at), pair.slice(at + 1)]; }))), cut: text?.cut !== undefined };
  }, [], 5000);
  const kill = async id => { const [reply] = await commands([["CLIENT", "KILL", "ID", id]]); if (reply?.error) alert(reply.error); again(); };
  const ask = async id => setWhy({ id, reply: await command(["EVENKEEL", "WHY", id]).catch(problem => ({ error: problem.message })) });
  const wanted = filter.toLowerCase();
  const [by, way] = sort;
  const found = (value?.clients || []).filter(client => !wanted || COLUMNS.some(([field]) => (client[field] || "").toLowerCase().includes(wanted)));
  found.sort((x, y) => way * (NUMBERS.includes(by) ? x[by] - y[by] : (x[by] || "").localeCompare(y[by] || "")));
  const cell = (field, text) => field === "tot-mem" ? size(+text) : field === "age" || field === "idle" ? dur(text * 1e6) : field === "cmd" ? text.replace("|", " ") : shown(text);
  return html`<h1 class="hide">Clients</h1><section class="panel">
    <div class="top"><h2>${value ? clients(value.clients.length) : "…"}</h2>${value?.cut ? html`<span class="soft">there are more</span>` : null}<label class="end">Find <input value=${filter} onInput=${e => setFilter(e.target.value)} autocomplete="off" spellcheck=${false}/></label></div>
    <${Problem} error=${error}/>
    <div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list"><thead><tr>${COLUMNS.map(([field, name]) => html`<th class=${NUMBERS.includes(field) ? "num" : ""} aria-sort=${by === field ? (way > 0 ? "ascending" : "descending") : "none"}><button type="button" onClick=${() => setSort([field, by === field ? -way : 1])}>${name}${by === field ? (way > 0 ? " ↑" : " ↓") : ""}</button></th>`)}<th><span class="hide">Actions</span></th></tr></thead><tbody>
    ${found.slice(0, limit).map(client => html`<tr key=${client.id}>${COLUMNS.map(([field]) => html`<td class=${NUMBERS.includes(field) ? "num" : "cut"}>${cell(field, client[field] || "")}</td>`)}
      <td><button type="button" class="tool" onClick=${() => ask(client.id)}>Why</button> ${me.writes === "yes" ? html`<button type="button" class="tool bad" onClick=${() => kill(client.id)}>Kill</button>` : null}</td></tr>`)}
    ${found.length || loading ? null : html`<tr><td colspan=${COLUMNS.length + 1} class="soft">None.</td></tr>`}
    </tbody></table></div>
    ${found.length > limit ? html`<p class="pad"><button type="button" class="main" onClick=${() => setLimit(limit + SHOWN)}>${num(Math.min(SHOWN, found.length - limit))} more of ${num(found.length)}</button></p>` : null}</section>
    ${why ? html`<section class="panel" aria-live="polite"><div class="top"><h2>Why client ${why.id} waited</h2><button type="button" class="end tool" onClick=${() => setWhy(null)}>Close</button></div>${why.reply?.error ? html`<p class="soft pad">${why.reply.error}</p>` : html`<div class="pad"><${Tree} value=${why.reply}/></div>`}</section>` : null}`;
}

/** Any reply, as nested lists. */
export function Tree({ value }) {
  if (Array.isArray(value)) return value.length ? html`<ol class="tree">${value.map(one => html`<li><${Tree} value=${one}/></li>`)}</ol>` : html`<span class="soft">none</span>`;
  if (value && value.map) return html`<dl>${value.map.map(([name, one]) => html`<dt>${shown(name)}</dt><dd><${Tree} value=${one}/></dd>`)}</dl>`;
  return html`<span class="mono">${value === null ? "–" : shown(value)}</span>`;
}

// ----- disk, replicas, sources -----------------------------------------------------------------------------------------

const ago = seconds => day(seconds * 1000) + clock(seconds * 1000, true);

export function Disk() {
  const [{ value, error }] = useLoaded(async () => {
    const [text, replicas] = await commands([["INFO", "persistence", "replication"], ["EVENKEEL", "REPLICAS"]]);
    if (text?.error) throw new Error(text.error);
    return { of: info(text), replicas };
  }, [], 5000);
  const of = value?.of;
  if (!of) return html`<section class="panel"><h1 class="hide">Disk and replicas</h1><${Problem} error=${error}/><p class="soft pad">…</p></section>`;
  const logOn = of.aof_enabled === "1";
  return html`<h1 class="hide">Disk and replicas</h1><${Problem} error=${error}/><div class="two">
    <section class="panel"><div class="top"><h2>Snapshots</h2></div><${Facts} list=${[
      ["Last one saved", savedAt(of) ? ago(savedAt(of)) : "none since the start"], ["It ended", savedAt(of) || of.rdb_last_bgsave_status !== "ok" ? of.rdb_last_bgsave_status : ""], ["It took", of.rdb_last_bgsave_time_sec > 0 ? of.rdb_last_bgsave_time_sec + " s" : ""],
      ["Under way", of.rdb_bgsave_in_progress === "1" ? "yes, for " + of.rdb_current_bgsave_time_sec + " s" : "no"], ["Changes since", num(+of.rdb_changes_since_last_save || 0)]]}/></section>
    <section class="panel"><div class="top"><h2>Log</h2></div><${Facts} list=${logOn ? [
      ["Last write", of.aof_last_write_status], ["Size", size(+of.aof_current_size || 0)], ["Size after the last rewrite", size(+of.aof_base_size || 0)],
      ["A rewrite", of.aof_rewrite_in_progress === "1" ? "is under way" : "ended " + of.aof_last_bgrewrite_status], ["Not yet on disk", of.aof_buffer_length ? size(+of.aof_buffer_length) : ""]]
      : [["Log", "off: what is written after the last snapshot is lost with the process"]]}/></section></div>
    <section class="panel"><div class="top"><h2>${of.role === "slave" ? "Replica of " + shown(of.master_host) + ":" + of.master_port : "Primary of " + num(+of.connected_slaves || 0) + (of.connected_slaves === "1" ? " replica" : " replicas")}</h2></div>
      <${Facts} list=${[["Link", of.master_link_status], ["Last heard", of.master_last_io_seconds_ago ? of.master_last_io_seconds_ago + " s ago" : ""], ["Place in the stream", num(+of.master_repl_offset || 0)], ["Backlog", of.repl_backlog_size ? size(+of.repl_backlog_histlen || 0) + " of " + size(+of.repl_backlog_size) : ""]]}/>
      ${Array.isArray(value.replicas) && value.replicas.length ? html`<div class="pad"><${Tree} value=${value.replicas}/></div>` : null}</section>`;
}

export function Sources() {
  const [{ value, error }] = useLoaded(async () => {
    const [list, stats] = await commands([["EVENKEEL", "SOURCE", "LIST"], ["EVENKEEL", "SOURCE", "STATS"]]);
    if (list?.error) throw new Error(list.error);
    return { list, stats };
  }, [], 5000);
  const empty = Array.isArray(value?.list) && !value.list.length;
  return html`<h1 class="hide">Sources</h1><section class="panel"><div class="top"><h2>Sources</h2><span class="soft">databases whose rows are read through</span></div><${Problem} error=${error}/>
    ${!value ? html`<p class="soft pad">…</p>` : empty ? html`<p class="soft pad">There is none. EVENKEEL SOURCE ADD makes one.</p>` : html`<div class="pad"><${Tree} value=${value.list}/></div>`}</section>
    ${value && !empty ? html`<section class="panel"><div class="top"><h2>Figures</h2></div><div class="pad"><${Tree} value=${value.stats}/></div></section>` : null}`;
}
