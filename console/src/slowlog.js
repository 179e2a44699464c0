// The slow log with its causes: where the time of each request went, and for whom it waited.
import { useState } from "preact/hooks";
import { commands, pairs } from "./api.js";
import { html } from "./html.js";
import { useLoaded, useShared } from "./state.js";
import { clock, day, dur, shown } from "./text.js";
import { Problem, Tree } from "./views.js";

const SHOWN = "128";
const refused = reply => reply?.error && /^(NOPERM|ERR unknown)/.test(reply.error);

async function load() {
  const [why, threshold] = await commands([["SLOWLOG", "WHY", SHOWN], ["CONFIG", "GET", "slowlog-log-slower-than"]]);
  // A user who may only get the entries sees them without their causes.
  const entries = refused(why) ? (await commands([["SLOWLOG", "GET", SHOWN]]))[0] : why;
  if (entries?.error) throw new Error(entries.error);
  return { entries, hasCauses: entries === why, threshold: threshold?.error ? null : +pairs(threshold)[0]?.[1] };
}

export function Slowlog() {
  const { news } = useShared();
  const [{ value, error, loading }, again] = useLoaded(load, [news.wait], 10e3);
  const [open, setOpen] = useState(null);
  const entries = value?.entries || [];
  return html`<h1 class="hide">Slow log</h1><section class="panel">
    <div class="top"><h2>Slow log</h2><span class="soft">${value?.threshold > 0 ? "requests of " + dur(value.threshold) + " and more, newest first" : "newest first"}</span><button type="button" class="end tool" onClick=${again}>Again</button></div>
    <${Problem} error=${error}/>
    <div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="list cards"><thead><tr><th>Time</th><th>Command</th><th class="num">Took</th><th>Waited for</th></tr></thead><tbody>
    ${entries.map(entry => html`<${Entry} key=${entry[0]} ...${{ entry, hasCauses: value.hasCauses, on: open === entry[0], flip: () => setOpen(open === entry[0] ? null : entry[0]) }}/>`)}
    ${entries.length ? null : html`<tr><td colspan="4" class="soft">${loading ? "…" : error ? "" : "No request was slow."}</td></tr>`}
    </tbody></table></div></section>`;
}

function Entry({ entry, hasCauses, on, flip }) {
  const [, at, us, words, address, name, cause, command, byAddress, byName] = entry;
  const who = shown(name) || shown(address), text = words.map(shown).join(" ");
  const culprit = hasCauses ? shown(byName) || shown(byAddress) || shown(command) : "";
  return html`<tr class=${"rec" + (on ? " on" : "")} onClick=${flip}>
      <td><button type="button" class="mono" aria-expanded=${on}>${day(at * 1000)}${clock(at * 1000, true)}</button></td>
      <td class="cut wide" title=${text}><b>${who}</b> <span class="mono soft">${text}</span></td>
      <td class="num"><b>${dur(us)}</b></td>
      <td class="behind cut">${culprit ? html`<b>${culprit}</b>` : html`<span class="soft" title=${hasCauses ? shown(cause) : ""}>${hasCauses ? "nobody" + (cause ? ": " + shown(cause) : "") : ""}</span>`}</td></tr>
    ${on ? html`<tr class="more"><td colspan="4"><${Opened} ...${{ who, address, text, cause, command, culprit }}/></td></tr>` : null}`;
}

/** Where an entry's time went, and what its client's latest requests waited for. */
function Opened({ who, address, text, cause, command, culprit }) {
  const [why, setWhy] = useState(null);
  const ask = async event => {
    event.stopPropagation();
    const [list] = await commands([["CLIENT", "LIST"]]).catch(problem => [{ error: problem.message }]);
    const line = list?.error ? null : String(list?.cut ?? list).split("\n").find(line => line.includes(" addr=" + shown(address) + " "));
    if (!line) return setWhy({ error: list?.error || "This client has gone, and its own requests with it." });
    const [reply] = await commands([["EVENKEEL", "WHY", /^id=(\d+)/.exec(line)[1]]]).catch(problem => [{ error: problem.message }]);
    setWhy(reply);
  };
  return html`<dl><dt>request</dt><dd class="mono">${text}</dd><dt>client</dt><dd>${who === shown(address) ? who : who + ", " + shown(address)}</dd>
      ${cause ? html`<dt>its time</dt><dd>${shown(cause)}</dd>` : null}
      ${culprit ? html`<dt>behind</dt><dd><b>${culprit}</b> <span class="mono">${shown(command)}</span></dd>` : null}</dl>
    ${why ? (why.error ? html`<p class="soft pad">${why.error}</p>` : html`<div class="pad"><${Tree} value=${why}/></div>`)
      : html`<button type="button" class="main" onClick=${ask}>What else this client waited for</button>`}`;
}
