// Who uses the memory, by the beginnings of names, as EVENKEEL PREFIXES counted it; and the largest keys.
import { useState } from "preact/hooks";
import { command, pairs } from "./api.js";
import { html } from "./html.js";
import { link, useLoaded } from "./state.js";
import { bytesOf, clock, day, dur, idOf, num, shown, size } from "./text.js";

const SHOWN = 50, MORE = 200;

async function load(most) {
  const reply = Object.fromEntries(pairs(await command(["EVENKEEL", "PREFIXES", "GET", String(most)])));
  const maps = list => list.map(one => Object.fromEntries(pairs(one)));
  return { ...reply, prefixes: maps(reply.prefixes), largest: pairs(reply.largest).map(([kind, list]) => [kind, maps(list)]) };
}

export function Prefixes() {
  const [most, setMost] = useState(SHOWN), [wrong, setWrong] = useState(null);
  const [{ value, error }, again] = useLoaded(() => load(most), [most], 2000);
  const run = async () => { setWrong(null); await command(["EVENKEEL", "PREFIXES", "RUN"]).catch(problem => setWrong(problem.message)); again(); };
  const running = value && value.running !== null, counted = value?.time_ms;
  const largest = (value?.largest || []).flatMap(([kind, list]) => list.map(one => ({ ...one, kind }))).sort((x, y) => y.bytes - x.bytes).slice(0, most);
  return html`<section class="panel" aria-label="Memory by prefix">
      <div class="top"><h2>By the beginnings of names</h2>
        <span class="soft" aria-live="polite">${running ? "counting, " + num(value.running) + " keys so far" : counted ? "counted " + day(counted) + clock(counted, true) + " in " + (value.took_ms ? dur(value.took_ms * 1000) : "less than 1 ms") + (value.whole ? "" : "; the time was over before all keys were seen") : value ? "not counted yet" : ""}</span>
        <button type="button" class="end main" disabled=${running} onClick=${run}>Count now</button></div>
      ${wrong || error ? html`<p class="bad pad" role="alert">${wrong || error.message}</p>` : null}
      ${counted ? html`<${Table} value=${value}/>` : html`<p class="soft pad">A count looks at every key, one at a time, on a thread of its own that rests as long as it works. Nobody waits for it.</p>`}
      ${counted && value.prefixes.length === most && most < MORE ? html`<button type="button" class="more tool" onClick=${() => setMost(MORE)}>More</button>` : null}
    </section>
    ${largest.length ? html`<section class="panel" aria-label="Largest keys"><div class="top"><h2>Largest keys</h2></div>
      <div class="scroll" tabindex="0" role="group" aria-label="Largest keys"><table class="list"><thead><tr><th>Key</th><th>Type</th><th class="num">Bytes</th><th class="num opt">Elements</th></tr></thead><tbody>
        ${largest.map(one => html`<tr key=${one.db + one.kind + idOf(one.key)}><td class="cut wide mono"><a href=${link("keys", one.db ? { db: one.db, key: idOf(one.key) } : { key: idOf(one.key) })}>${shown(one.key)}</a></td><td>${one.kind}</td><td class="num"><b>${size(one.bytes)}</b></td><td class="num opt">${num(one.items)}</td></tr>`)}
      </tbody></table></div></section>` : null}`;
}

/** The pattern that fits a prefix's keys; null: it is no text. */
const pattern = prefix => prefix.b64 === undefined ? prefix.replace(/[*?[\]\\]/g, "\\$&") + "*" : null;

function Table({ value }) {
  // A user who may not read all keys is told no sums of all: shares are those of what it sees.
  const all = value.bytes || Math.max(1, ...value.prefixes.map(one => one.bytes));
  const grows = value.earlier_ms.length > 0;
  const several = value.prefixes.some(one => one.db);
  if (!value.prefixes.length) return html`<p class="soft pad">No prefix that you may read.</p>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list"><thead><tr><th>Prefix</th>${several ? html`<th class="num">Db</th>` : null}<th class="num">Bytes</th><th class="opt">Share</th>${grows ? html`<th class="num">Growth</th>` : null}<th class="num">Keys</th><th class="num opt">That expire</th><th class="num opt">Used in the last minute</th></tr></thead><tbody>
    ${value.prefixes.map(one => { const match = bytesOf(one.prefix).length ? pattern(one.prefix) : null; return html`<tr key=${one.db + idOf(one.prefix)}>
      <td class="cut mono">${match ? html`<a href=${link("keys", one.db ? { db: one.db, match } : { match })}>${shown(one.prefix)}</a>` : shown(one.prefix) || html`<span class="soft">no prefix</span>`}</td>
      ${several ? html`<td class="num">${one.db}</td>` : null}
      <td class="num"><b>${size(one.bytes)}</b></td>
      <td class="opt"><span class="bar" style=${{ width: Math.max(2, one.bytes / all * 110) + "px" }}></span> ${(one.bytes / all * 100).toFixed(1)} %</td>
      ${grows ? html`<td class="num">${growth(one, value.earlier_ms)}</td>` : null}<td class="num">${num(one.keys)}</td>
      <td class="num opt">${num(one.expiring)}</td><td class="num opt">${num(one.used)}</td></tr>`; })}
    </tbody></table></div>
    <p class="soft pad">A prefix ends at a colon or slash and includes those below it${value.prefixes.some(one => one.missing_bytes) ? "; there are too many for a sum each, so small ones may lack some of their bytes" : ""}.</p>`;
}

/** Bytes more than at the oldest count that is known. */
function growth(one, times) {
  const at = one.earlier_bytes.findIndex(bytes => bytes !== null);
  if (at < 0) return times.length ? "new" : "";
  const more = one.bytes - one.earlier_bytes[at];
  return html`<span title=${"since " + day(times[at]) + clock(times[at], true)}>${more ? (more > 0 ? "+" : "−") + size(Math.abs(more)) : "0"}</span>`;
}
