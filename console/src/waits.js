// Who made whom wait: now, at the worst times, and in any selected time.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { command, get, info, savedAt } from "./api.js";
import { CAUSES, DAY, H, M, causeOf, colour, drawCauses, drawDay, drawHeat, drawLine, heatAt, LEFT, moment, tOf, vitals, xOf } from "./charts.js";
import { html } from "./html.js";
import { link, place, useDrawn, useLoaded, usePlace, useShared } from "./state.js";
import { clients, clock, day, dur, least, most, num, shown, waits, zone } from "./text.js";

const RANGES = [["15 min", 15 * M], ["1 h", H], ["6 h", 6 * H], ["24 h", DAY]];
const rangeOf = ms => (RANGES.find(([, range]) => range >= ms) || RANGES[3])[1];

const kindOf = party => party.kind === "client" && party.client ? "client " + party.client : party.kind;
const commandOf = party => party.words?.length ? party.words.map(shown).join(" ") : shown(party.command).toUpperCase();
const nameOf = party => party ? shown(party.name) || kindOf(party) : "unknown";
const sum = (list, of) => list.reduce((all, one) => all + of(one), 0);
const Tag = ({ cause }) => html`<span class="tag" style=${{ "--k": "var(--c-" + (CAUSES[cause] ? cause : "unknown") + ")" }}></span>`;

/** The selection in the address: the same link shows the same minute. */
function selected(at, now) {
  const [a, b] = (at.with.get("t") || "").split("/").map(text => Date.parse(text));
  if (!(b > a)) return { a: now - M, b: now, live: true, win: rangeOf(+at.with.get("w") || H), from: null };
  const win = rangeOf(Math.max(+at.with.get("w") || 0, b - a));
  return { a, b, live: false, win, from: Math.min(now - win, (a + b) / 2 - win / 2) };
}

export function Waits() {
  const { now, news } = useShared();
  const at = usePlace();
  const [tick, setTick] = useState(Date.now());
  useEffect(() => { const timer = setInterval(() => document.hidden || setTick(Date.now()), 5000); return () => clearInterval(timer); }, []);
  const time = Math.max(tick, now?.time_ms || 0);
  const span = useMemo(() => selected(at, time), [at, at.with.has("t") ? 0 : time]);
  const from = span.from ?? time - span.win;
  const [pick, setPick] = useState(null);
  const go = (a, b, win = span.win) => {
    setPick(null);
    location.hash = link("waits", { t: new Date(a).toISOString() + "/" + new Date(b).toISOString(), w: rangeOf(Math.max(win, b - a)) });
  };
  const goLive = () => { setPick(null); location.hash = link("waits"); };
  const whole = useLoaded(() => get("history", { from: -DAY, to: 0, columns: 144 }), [news.mark], 60e3)[0];
  const bad = useLoaded(() => get("incidents"), [news.incident], 30e3)[0];
  return html`
    <h1 class="hide">Who made whom wait</h1>
    <section class="answer" aria-label="The answer">
      <${Now} now=${now}/>
      <${Worst} state=${bad} span=${span} go=${go}/>
    </section>
    <${Time} span=${span} from=${from} whole=${whole.value} error=${whole.error} go=${go} goLive=${goLive} time=${time}/>
    <${Selected} span=${span} from=${from} pick=${pick} setPick=${setPick}/>`;
}

function Now({ now }) {
  const { trouble } = useShared();
  const [{ value: saved }] = useLoaded(() => command(["INFO", "persistence"]).then(text => savedAt(info(text))).catch(() => null), [], 60e3);
  if (!now) return html`<div class="panel now"><p class="label">Now</p><p class="verdict soft">${trouble || "The first figures are on their way …"}</p></div>`;
  const edges = (now.edges || []).filter(edge => edge.longest_us >= 1000 && causeOf(edge.for)[2]);
  const minute = now.minute?.waits || {};
  const others = Object.entries(minute).filter(([name]) => causeOf(name)[2]);
  const count = sum(others, ([, w]) => w.n), longest = most(others.map(([, w]) => w.longest_us));
  const chief = others.sort((x, y) => y[1].us - x[1].us)[0];
  // Below a two-thousandth of a core nobody is heavy.
  const heavy = now.heaviest?.find(one => one.us > 30_000);
  return html`<div class="panel now">
    <p class="label">Now</p>
    <p class="verdict" id="verdict">${edges.length ? verdict(edges) : "Nobody waits for another client."}</p>
    <div class="facts">
      <div><b>${waits(count)}</b> in the last minute${count ? ", longest " + dur(longest) + ", most of the time for " + causeOf(chief[0])[0] : ""}.</div>
      ${heavy ? html`<div>Heaviest: <b>${nameOf(heavy.client)}</b>, <span class="mono">${shown(heavy.client.command).toUpperCase()}</span>, ${share(heavy.us, 60)} of a core in the last minute. ${whoWaits(now, heavy.client)}</div>` : html`<div>No client worked for long in the last minute.</div>`}
      <div class=${"soft" + (isBad(now) ? " bad" : "")}>${around(now, saved)}</div>
    </div>
  </div>`;
}

const share = (us, seconds) => { const part = us / 1e4 / seconds; return (part < 10 ? part.toFixed(1) : Math.round(part)) + " %"; };
const whoWaits = (now, client) => {
  const made = (now.edges || []).filter(edge => edge.culprit.name === client.name);
  return made.length ? "Others waited for it " + waits(sum(made, e => e.waits)) .replace(/ waits?$/, m => m === " wait" ? " time" : " times") + ", " + dur(most(made.map(e => e.longest_us))) + " at most." : "Nobody waited for it.";
};

function verdict(edges) {
  const [edge] = edges;
  const many = edge.waiter.clients > 1 ? clients(edge.waiter.clients) + " of " : "";
  return nameOf(edge.culprit) + " makes " + many + nameOf(edge.waiter) + " wait for " + causeOf(edge.for)[0] + ".";
}

const isBad = now => now.disk?.save_failed || now.disk?.log_stopped || now.sources_down?.length || (now.role && !now.role.link_up);
function around(now, saved) {
  const parts = [], disk = now.disk || {};
  if (disk.saving) parts.push("a snapshot is being saved");
  else if (disk.save_failed) parts.push("the last snapshot failed");
  else if (saved) parts.push("snapshot " + dur(Math.max(0, Date.now() - saved * 1000) * 1000) + " ago");
  else if (saved === 0) parts.push("no snapshot since the start");
  parts.push(disk.log === "ok" ? "log on disk" : disk.log === "off" ? "no log" : "log: " + shown(disk.log));
  if (now.role?.name === "replica") parts.push(now.role.link_up ? "a replica, linked" : "a replica without its primary");
  const replicas = now.replicas || [];
  if (replicas.length) parts.push(replicas.length + (replicas.length === 1 ? " replica" : " replicas") + " within " + Math.round(most(replicas.map(r => r.lag_ms))) + " ms");
  (now.sources_down || []).forEach(text => parts.push(shown(text)));
  const text = parts.join(", ");
  return text.charAt(0).toUpperCase() + text.slice(1) + ".";
}

function Worst({ state, span, go }) {
  const list = (state.value?.incidents || []).slice(0, 5).sort((x, y) => y.from_ms - x.from_ms);
  return html`<div class="panel worst">
    <p class="label">Who made whom wait: the worst times of the last 24 hours, newest first</p>
    ${list.map(one => html`<button type="button" class="inc" key=${one.from_ms} aria-pressed=${span.a === one.from_ms && span.b === one.to_ms} onClick=${() => go(one.from_ms, one.to_ms, H)}>
      <span class="t">${moment(one.from_ms)}</span>
      <span class="x" title=${sentence(one)}><${Tag} cause=${one.for}/>${sentence(one)}</span>
      <span class="n">${waits(one.waits)}</span><span class="l">${dur(one.longest_us)}</span>
    </button>`)}
    ${list.length ? null : html`<p class="soft pad">${state.error ? state.error.message : state.loading ? "…" : "No time stands out: nobody waited for 10 ms, and no minute was much worse than the others."}</p>`}
  </div>`;
}

const sentence = one => one.culprit ? nameOf(one.culprit) + " made " + nameOf(one.waiter) + " wait for " + causeOf(one.for)[0] : "clients waited for " + causeOf(one.for)[0];

function Time({ span, from, whole, error, go, goLive, time }) {
  const [width, setWidth] = useState(innerWidth);
  useEffect(() => { const hear = () => setWidth(innerWidth); addEventListener("resize", hear); return () => removeEventListener("resize", hear); }, []);
  const columns = Math.max(40, Math.min(360, Math.floor((Math.min(width, 1560) - 100) / 5)));
  const shownSpan = { from, win: span.win };
  const [{ value: table }] = useLoaded(() => get("history", { from: Math.floor(from), to: Math.ceil(from + span.win), columns }), [Math.floor(from / Math.max(5000, span.win / columns)), span.win, columns]);
  const [drag, setDrag] = useState(null);
  const [a, b] = drag ? [Math.min(...drag), Math.max(...drag)] : [span.a, span.b];
  const peak = useRef(0);
  const dayRef = useDrawn(c => { if (whole) peak.current = drawDay(c, whole, shownSpan); }, [whole, from, span.win]);
  const heat = useDrawn(c => table && drawHeat(c, table, shownSpan, a, b), [table, from, a, b]);
  const causes = useDrawn(c => table && drawCauses(c, table, shownSpan, a, b), [table, from, a, b]);
  const [tip, setTip] = useState(null);
  const jump = useRef(null), box = useRef(null);
  const step = table?.step_ms || 10e3;
  const round = t => Math.floor(t / step) * step;

  const down = e => { const t = tOf(e.offsetX, shownSpan, e.currentTarget.clientWidth); e.currentTarget.setPointerCapture(e.pointerId); setDrag([round(t), round(t) + step]); };
  const move = e => {
    const canvas = e.currentTarget;
    if (drag) setDrag([drag[0], Math.min(time, round(tOf(e.offsetX, shownSpan, canvas.clientWidth)) + step)]);
    const text = table && heatAt(canvas, table, shownSpan, e.offsetX, e.offsetY);
    setTip(text && { text, x: Math.max(96, Math.min(canvas.clientWidth - 96, e.offsetX)), y: e.offsetY - 10 });
  };
  const up = () => {
    if (!drag) return;
    const wide = b - a > step * 1.5 ? [a, b] : [Math.floor(a / M) * M, Math.min(time, Math.floor(a / M) * M + M)];
    setDrag(null);
    go(...wide);
  };
  const clickDay = e => {
    if (!whole) return;
    const all = { from: whole.from_ms, win: whole.n * whole.step_ms }, t = tOf(e.offsetX, all, e.currentTarget.clientWidth);
    const start = Math.floor(t / M) * M;
    go(start, Math.min(time, start + 5 * M), H);
  };
  const keys = e => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    e.preventDefault();
    const by = e.key === "ArrowLeft" ? -step : step;
    if (e.shiftKey) go(span.a, Math.min(time, Math.max(span.a + step, span.b + by)));
    else if (span.b + by <= time) go(span.a + by, span.b + by);
  };
  useEffect(() => {
    const hear = e => {
      if (/INPUT|SELECT|TEXTAREA/.test(e.target.tagName) || e.ctrlKey || e.metaKey || e.altKey) return;
      if (e.key === "/") { e.preventDefault(); jump.current?.focus(); } else if (e.key === "n" || e.key === "N") goLive();
    };
    addEventListener("keydown", hear);
    return () => removeEventListener("keydown", hear);
  });
  const jumped = e => {
    if (e.key !== "Enter") return;
    const found = /^(\d{1,2})[:.]?(\d{2})$/.exec(e.target.value.trim());
    const t = new Date(time);
    if (!found || found[1] > 23 || found[2] > 59) return e.target.setAttribute("aria-invalid", "true");
    e.target.removeAttribute("aria-invalid");
    t.setHours(+found[1], +found[2], 0, 0);
    // A time of day that is still to come was yesterday's.
    if (t > time) t.setDate(t.getDate() - 1);
    go(+t, Math.min(time, +t + M), H);
    box.current?.focus();
  };
  const ramp = name => html`<span class="ramp" aria-hidden="true">${[0, 1, 2, 3, 4, 5].map(i => html`<i class=${name + i}></i>`)}</span>`;
  const seen = table ? Object.keys(CAUSES).filter(name => CAUSES[name][2] && (table.waits[name] || whole?.waits[name])) : [];
  return html`<section class="panel" aria-label="Time">
    <div class="top"><h2>Time spent waiting, last 24 hours</h2><span class="soft">${error ? error.message : "by cause, on a square-root scale"}</span>
      <label class="jump end">Go to <input ref=${jump} onKeyDown=${jumped} inputmode="numeric" placeholder="03:12" autocomplete="off" aria-label="Go to a time of day, hours and minutes"/></label></div>
    <div class="chart"><canvas id="over" ref=${dayRef} onClick=${clickDay} role="img" aria-label="Waiting time over the last 24 hours, by cause"></canvas></div>
    <div class="top"><h2>Latency of all requests</h2><span class="soft">${moment(from)} to ${clock(from + span.win)}, a column is ${dur(step * 1000)}</span>
      <span class="ranges end" role="group" aria-label="Length of the window">
        <button type="button" aria-pressed=${span.live} onClick=${goLive}>Now</button>
        ${RANGES.map(([name, ms]) => html`<button type="button" aria-pressed=${span.win === ms} onClick=${() => span.live ? location.hash = link("waits", { w: ms }) : go(Math.max(span.a, span.b - ms), span.b, ms)}>${name}</button>`)}
      </span></div>
    <div class="chart" ref=${box} tabindex="0" role="group" aria-describedby="hints" aria-label="Latency over time. The selected time is described below." onKeyDown=${keys}>
      <canvas id="heat" ref=${heat} aria-hidden="true" onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${() => setTip(null)}></canvas>
      ${tip ? html`<div class="tip" style=${{ left: tip.x + "px", top: tip.y + "px" }}>${tip.text}</div>` : null}
    </div>
    <div class="top"><h2>Waits by cause</h2><span class="legend">${seen.map(name => html`<span key=${name}><i class=${"k-" + name}></i>${CAUSES[name][0]}</span>`)}${seen.length ? null : html`<span>none in this time</span>`}</span></div>
    <div class="chart"><canvas id="cause" ref=${causes} role="img" aria-label="Waits for each cause over the window"></canvas></div>
    <div class="foot legend">
      <span>Under 1 ms, share of all requests: ${ramp("h")} 35 %</span><span>1 ms and more, requests a second: ${ramp("s")} 30</span>
      <span id="hints">Drag to select.<span class="k"> Keys: <kbd>←</kbd> <kbd>→</kbd> move, with <kbd>Shift</kbd> widen, <kbd>N</kbd> now, <kbd>/</kbd> go to a time.</span></span>
    </div>
    <${Vitals} table=${table} span=${shownSpan} a=${a} b=${b}/>
  </section>`;
}

function Vitals({ table, span, a, b }) {
  if (!table) return null;
  return html`<div class="vitals" aria-label="Vital signs" role="group">${vitals(table).map(([name, data, spell]) => html`<${Vital} key=${name} ...${{ name, data, spell, table, span, a, b }}/>`)}</div>`;
}

function Vital({ name, data, spell, table, span, a, b }) {
  const known = data.filter(v => v !== null);
  const canvas = useDrawn(c => known.length && drawLine(c, data, table, span, a, b), [table, a, b]);
  return html`<div class="vital"><div class="label">${name}</div>
    <b>${known.length ? spell(known[known.length - 1]) : "–"}</b> <span class="soft">${known.length ? spell(least(known)) + " – " + spell(most(known)) : ""}</span>
    <canvas ref=${canvas} role="img" aria-label=${name + " over the window"}></canvas></div>`;
}

function Selected({ span, pick, setPick }) {
  const { news } = useShared(), every = span.live ? 5000 : 0;
  const bounds = () => span.live ? { from: -M, to: 0 } : { from: Math.floor(span.a), to: Math.ceil(span.b) };
  // A wait that was told is in the lists at once.
  const key = span.live ? "live" + (news.wait || "") : span.a + "/" + span.b;
  const [flows] = useLoaded(() => get("flows", bounds()), [key], every);
  const [records] = useLoaded(() => get("records", { ...bounds(), count: 50 }), [key], every);
  const title = span.live ? "in the last minute" : day(span.a) + clock(span.a, true) + " to " + clock(span.b, true);
  const seconds = span.live ? 60 : (span.b - span.a) / 1000;
  const edges = (flows.value?.edges || []).filter(edge => causeOf(edge.for)[2]);
  const matches = (culprit, waiter) => !pick || nameOf(culprit) === pick || nameOf(waiter) === pick;
  return html`<section class="two">
      <div class="panel"><div class="top"><h2>Who made whom wait</h2><span class="soft" aria-live="polite">${title}</span><${Copy} span=${span} edges=${edges}/></div>
        ${flows.error ? html`<p class="soft pad">${flows.error.message}</p>` : flows.loading ? html`<p class="soft pad">…</p>` : html`<${Flow} edges=${edges.slice(0, 12)} others=${flows.value.others} pick=${pick} setPick=${setPick}/>`}
      </div>
      <div class="panel"><div class="top"><h2>Longest waits</h2><span class="soft">${pick ? "with " + pick + ", " : ""}${records.value ? records.value.records.length + " of " + num(records.value.all ?? records.value.records.length) : ""}</span></div>
        <${Records} state=${records} matches=${matches}/></div>
    </section>
    <section class="panel">
      <div class="top"><h2>What the server worked on</h2><span class="soft">clients with the most processor time in the selected time, whether or not anybody waited</span></div>
      <${Work} list=${flows.value?.heaviest || []} edges=${edges} seconds=${seconds}/>
    </section>`;
}

function say(edges) {
  const [edge] = edges, head = edges.filter(e => nameOf(e.culprit) === nameOf(edge.culprit) && e.for === edge.for);
  const names = head.map(e => (e.waiter.clients > 1 ? clients(e.waiter.clients) + " of " : "") + nameOf(e.waiter));
  const list = names.length > 1 ? names.slice(0, -1).join(", ") + " and " + names[names.length - 1] : names[0];
  return [nameOf(edge.culprit), " made " + list + " wait for " + causeOf(edge.for)[0] + ": " + waits(sum(head, e => e.waits)) + ", " + dur(sum(head, e => e.us)) + " together, longest " + dur(most(head.map(e => e.longest_us))) + "."];
}

function Copy({ span, edges }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    const t = "t=" + new Date(span.a).toISOString() + "/" + new Date(span.b).toISOString();
    const address = location.href.split("#")[0] + "#waits?" + t;
    const text = moment(span.a) + " " + zone(span.a) + ": " + (edges.length ? say(edges).join("") : "Nobody waited.") + "\n" + address;
    try { await navigator.clipboard.writeText(text); setDone("Copied"); } catch { setDone("The browser does not allow it"); }
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="end soft tool" onClick=${copy}>${done || "Copy sentence and link"}</button>`;
}

const TALL = 76, GAP = 8, HEAD = 20;

function Flow({ edges, others, pick, setPick }) {
  if (!edges.length) return html`<div class="none"><b>Nobody waited.</b>No request of this time waited a quarter of a millisecond for anybody.</div>`;
  const group = of => { const all = new Map(); for (const edge of edges) all.set(of(edge), [...(all.get(of(edge)) || []), edge]); return [...all]; };
  const left = e => nameOf(e.culprit) + "\n" + e.for, right = e => nameOf(e.waiter) + "\n" + shown(e.waiter.command);
  const L = group(left), R = group(right), total = sum(edges, e => e.us) || 1, thick = e => Math.max(1.5, e.us / total * 44);
  const height = HEAD + Math.max(L.length, R.length) * (TALL + GAP), used = new Map();
  const middle = (side, list, key, edge) => {
    const at = list.findIndex(([name]) => name === key), all = sum(list[at][1], thick), had = used.get(side + key) || 0;
    used.set(side + key, had + thick(edge));
    return HEAD + at * (TALL + GAP) + (TALL - all) / 2 + had + thick(edge) / 2;
  };
  const paths = edges.map(edge => { const y0 = middle("L", L, left(edge), edge), y1 = middle("R", R, right(edge), edge); return { edge, d: `M0 ${y0}C50 ${y0} 50 ${y1} 100 ${y1}` }; });
  const [who, rest] = say(edges);
  const flip = name => setPick(pick === name ? null : name);
  return html`<p class="say"><b>${who}</b>${rest} <span class="soft">${causeOf(edges[0].for)[3]}</span></p>
    <div class="flow">
      <div class="col"><div class="hd">made wait</div>${L.map(([key, list]) => html`<${Node} key=${key} side="left" list=${list} party=${list[0].culprit} pick=${pick} flip=${flip}/>`)}</div>
      <svg class="gap" aria-hidden="true" viewBox=${"0 0 100 " + height} preserveAspectRatio="none" height=${height}>${paths.map(({ edge, d }) => html`<path d=${d} vector-effect="non-scaling-stroke" class=${pick && nameOf(edge.culprit) !== pick && nameOf(edge.waiter) !== pick ? "dim" : ""} style=${{ stroke: "var(--c-" + (CAUSES[edge.for] ? edge.for : "unknown") + ")", strokeWidth: thick(edge) + "px" }}/>`)}</svg>
      <div class="col to"><div class="hd">waited, and for how long together</div>${R.map(([key, list]) => html`<${Node} key=${key} side="right" list=${list} party=${list[0].waiter} pick=${pick} flip=${flip}/>`)}</div>
    </div>
    ${others?.waits ? html`<p class="soft pad">And ${waits(others.waits)} more, ${dur(others.us)} together.</p>` : null}`;
}

function Node({ side, list, party, pick, flip }) {
  const name = nameOf(party), isLeft = side === "left", cause = list[0].for;
  return html`<button type="button" class=${"node " + side + (pick === name ? " on" : "")} aria-pressed=${pick === name} style=${{ "--k": "var(--c-" + (CAUSES[cause] ? cause : "unknown") + ")" }} onClick=${() => flip(name)}>
    <span class="r"><b>${name}</b><span class="soft fix">${isLeft ? causeOf(cause)[1] : dur(sum(list, e => e.us))}</span></span>
    <span class="one mono" title=${commandOf(party)}>${commandOf(party) || " "}</span>
    <span class="r soft"><span class="one">${isLeft ? kindOf(party) : clients(most(list.map(e => e.waiter.clients)) || 1)}</span><span class="fix">${waits(sum(list, e => e.waits))}, longest ${dur(most(list.map(e => e.longest_us)))}</span></span>
    ${isLeft ? html`<span class="whom">${list.map(e => html`<span class="r"><span>→ ${nameOf(e.waiter)}, ${clients(e.waiter.clients || 1)}</span><span>${dur(e.us)} together</span></span>`)}</span>` : null}
  </button>`;
}

function Records({ state, matches }) {
  const [open, setOpen] = useState(null), [all, setAll] = useState(false);
  const found = state.value?.records || [];
  // A slow request that waited is there as its wait, too.
  const waited = r => found.some(o => o.for !== "slow" && o.waiter.client === r.waiter.client && Math.abs(o.time_ms - r.time_ms) < 1000);
  const list = found.filter(r => matches(r.behind || { kind: "unknown", name: "" }, r.waiter) && (r.for !== "slow" || !waited(r)));
  if (state.error) return html`<p class="soft pad">${state.error.message}</p>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="cards"><thead><tr><th>Time</th><th>Waited</th><th class="num">Up to</th><th>For</th></tr></thead><tbody>
    ${list.length ? null : html`<tr><td colspan="4" class="soft">${state.loading ? "…" : "None."}</td></tr>`}
    ${list.slice(0, all ? 50 : 12).map(r => { const on = open === r.id; return html`
      <tr key=${r.id} class=${"rec" + (on ? " on" : "")} onClick=${() => setOpen(on ? null : r.id)}>
        <td><button type="button" class="mono" aria-expanded=${on}>${day(r.time_ms)}${clock(r.time_ms, true)}</button></td>
        <td class="cut"><b>${nameOf(r.waiter)}</b> <span class="mono soft">${shown(r.waiter.command).toUpperCase()}</span></td>
        <td class="num"><b>${dur(r.us)}</b></td>
        <td class="behind">${r.for === "slow" ? "itself: it was slow" : html`<${Tag} cause=${r.for}/>${causeOf(r.for)[0]}, <b>${nameOf(r.behind)}</b>`}</td></tr>
      ${on ? html`<tr class="more"><td colspan="4"><${Opened} record=${r}/></td></tr>` : null}`; })}
  </tbody></table>${!all && list.length > 12 ? html`<button type="button" class="more tool" onClick=${() => setAll(true)}>${list.length - 12} more</button>` : null}</div>`;
}

const PHASE_CAUSE = name => Object.keys(CAUSES).find(cause => name.includes(cause)) || (name.includes("desched") ? "os" : "loop");

function Opened({ record }) {
  const phases = Object.entries(record.phases || {}).filter(([, us]) => us > 0), all = sum(phases, ([, us]) => us) || 1;
  const who = party => [kindOf(party), shown(party.addr), party.user && "user " + shown(party.user)].filter(Boolean).join(", ");
  return html`<div class="phases" aria-hidden="true">${phases.map(([name, us]) => html`<span title=${name} style=${{ width: us / all * 100 + "%", background: "var(--c-" + PHASE_CAUSE(name) + ")" }}></span>`)}</div>
    <dl>${phases.map(([name, us]) => html`<dt>${name.replaceAll("-", " ")}</dt><dd>${dur(us)}</dd>`)}
      <dt>waited</dt><dd><span class="mono">${commandOf(record.waiter)}</span> ${who(record.waiter)}</dd>
      ${record.behind ? html`<dt>behind</dt><dd><span class="mono">${commandOf(record.behind)}</span> ${who(record.behind)}</dd>` : null}
      ${record.in?.length ? html`<dt>in</dt><dd class="mono">${record.in.map(shown).join(", called by ")}</dd>` : null}</dl>`;
}

function Work({ list, edges, seconds }) {
  if (!list.length) return html`<p class="soft pad">No client worked for long in this time.</p>`;
  const top = most(list.map(one => one.us)) || 1;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="work"><thead><tr><th>Client</th><th>Command</th><th class="num opt">Pieces a second</th><th>Share of a core</th><th class="num">Others waited at most</th></tr></thead><tbody>
    ${list.map(one => { const made = edges.filter(e => nameOf(e.culprit) === nameOf(one.client)); return html`<tr>
      <td><b>${nameOf(one.client)}</b></td><td class="mono cut wide" title=${commandOf(one.client)}>${commandOf(one.client)}</td>
      <td class="num opt">${one.pieces / seconds < 10 ? (one.pieces / seconds).toFixed(1) : num(one.pieces / seconds)}</td>
      <td><span class="bar" style=${{ width: Math.max(2, one.us / top * 110) + "px" }}></span> ${share(one.us, seconds)}</td>
      <td class="num">${made.length ? dur(most(made.map(e => e.longest_us))) : "not at all"}</td></tr>`; })}
  </tbody></table></div>`;
}
