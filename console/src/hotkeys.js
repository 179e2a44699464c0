// Hot keys: those with the most run time and network bytes, while HOTKEYS watches.
import { useState } from "preact/hooks";
import { command, pairs } from "./api.js";
import { html } from "./html.js";
import { link, useLoaded, useShared } from "./state.js";
import { clock, day, dur, idOf, num, shown, size } from "./text.js";
import { Problem } from "./views.js";

const START = ["HOTKEYS", "START", "METRICS", "2", "CPU", "NET", "COUNT", "30", "DURATION", "60"];

/** What HOTKEYS GET said, by name; null: nothing was watched. */
async function load() {
  const reply = await command(["HOTKEYS", "GET"]);
  return { found: reply ? Object.fromEntries(pairs(reply[0])) : null };
}

export function HotKeys() {
  const { me } = useShared();
  const [{ value, error, loading }, again] = useLoaded(load, [], 2000);
  const [wrong, setWrong] = useState(null);
  const found = value?.found, active = found?.["tracking-active"] === 1;
  const run = async words => { setWrong(null); await command(words).catch(problem => setWrong(problem.message)); again(); };
  const since = found && found["collection-start-time-unix-ms"];
  return html`<h1 class="hide">Hot keys</h1><section class="panel">
      <div class="top"><h2>${!value ? "…" : active ? "Keys are watched" : found ? "Keys that were watched" : "No keys are watched"}</h2>
        ${found ? html`<span class="soft">${active ? "since " : "from "}${day(since)}${clock(since, true)}, for ${dur(found["collection-duration-ms"] * 1000)}; ${found["sample-ratio"] === 1 ? "every command" : "one of " + num(found["sample-ratio"]) + " commands"}</span>` : null}
        ${me.writes === "yes" ? html`<button type="button" class="end main" onClick=${() => run(active ? ["HOTKEYS", "STOP"] : START)}>${active ? "Stop" : "Watch for a minute"}</button>` : null}</div>
      <${Problem} error=${error || wrong}/>
      <p class="soft pad">${loading ? "…" : me.writes === "yes" ? "Watching costs each command a short lock, so it ends after a minute." : html`Whoever may write starts it: <span class="mono">${START.join(" ")}</span>`}</p>
    </section>
    ${found ? html`<div class="split">
      <${Top} title="By run time" list=${found["by-cpu-time-us"]} spell=${dur} all=${found["all-commands-all-slots-us"]}/>
      <${Top} title="By network bytes" list=${found["by-net-bytes"]} spell=${size} all=${found["net-bytes-all-commands-all-slots"]}/></div>` : null}`;
}

/** A flat list of keys and sums, the largest first. */
function Top({ title, list, spell, all }) {
  if (!list) return null;
  const rows = pairs(list);
  return html`<section class="panel"><div class="top"><h2>${title}</h2><span class="soft">${spell(all)} of all commands</span></div>
    <div class="scroll" tabindex="0" role="group" aria-label=${title}><table class="list"><thead><tr><th>Key</th><th class="num">Sum</th><th>Share</th></tr></thead><tbody>
      ${rows.map(([key, sum]) => html`<tr key=${idOf(key)}><td class="cut mono"><a href=${link("keys", { key: idOf(key) })}>${shown(key)}</a></td><td class="num"><b>${spell(sum)}</b></td>
        <td><span class="bar" style=${{ width: Math.max(2, sum / (rows[0][1] || 1) * 110) + "px" }}></span> ${all ? (sum / all * 100).toFixed(1) : "0"} %</td></tr>`)}
      ${rows.length ? null : html`<tr><td colspan="3" class="soft">None yet.</td></tr>`}
    </tbody></table></div></section>`;
}
