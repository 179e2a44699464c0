// A prompt for commands, as redis-cli has one. What was asked stays in this tab.
import { useEffect, useRef, useState } from "preact/hooks";
import { commands, pairs } from "./api.js";
import { html } from "./html.js";
import { useLoaded, useShared } from "./state.js";
import { shown, visibleLines } from "./text.js";

/** The words of a line; an error text if a quote is open. In double quotes \xHH and \n mean bytes. */
export function words(line) {
  const found = [];
  let at = 0;
  while (true) {
    while (/\s/.test(line[at] || "")) at++;
    if (at >= line.length) return found;
    const bytes = [];
    const put = text => bytes.push(...new TextEncoder().encode(text));
    let quote = null;
    for (; at < line.length; at++) {
      const c = String.fromCodePoint(line.codePointAt(at));
      at += c.length - 1;
      if (quote === null && /\s/.test(c)) break;
      if (quote === null && (c === '"' || c === "'")) { quote = c; continue; }
      if (c === quote) { quote = null; continue; }
      if (quote === '"' && c === "\\") {
        const hex = /^x([0-9a-fA-F]{2})/.exec(line.slice(at + 1));
        const next = line[++at];
        if (hex) { bytes.push(parseInt(hex[1], 16)); at += 2; } else put({ n: "\n", r: "\r", t: "\t", a: "\x07", b: "\b" }[next] ?? next ?? "");
        continue;
      }
      if (quote === "'" && c === "\\" && line[at + 1] === "'") { put("'"); at++; continue; }
      put(c);
    }
    if (quote !== null) return "a quote is open";
    found.push(word(Uint8Array.from(bytes)));
  }
}

function word(bytes) {
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); } catch {
    let text = "";
    bytes.forEach(byte => { text += String.fromCharCode(byte); });
    return { b64: btoa(text) };
  }
}

/** A reply in the way of redis-cli. */
export function spelled(reply, indent = "") {
  if (reply === null) return "(nil)";
  if (typeof reply === "number") return "(integer) " + reply;
  if (typeof reply === "boolean") return "(" + reply + ")";
  if (reply.int !== undefined) return "(integer) " + reply.int;
  if (reply.double !== undefined) return "(double) " + reply.double;
  if (reply.error !== undefined) return "(error) " + shown(reply.error);
  if (Array.isArray(reply)) {
    if (!reply.length) return "(empty array)";
    const wide = String(reply.length).length;
    return reply.map((one, n) => { const head = String(n + 1).padStart(wide) + ") "; return (n ? indent : "") + head + spelled(one, indent + " ".repeat(head.length)); }).join("\n");
  }
  if (reply.map) return reply.map.length ? reply.map.map(([name, value], n) => (n ? indent : "") + (n + 1) + "# " + spelled(name) + " => " + spelled(value, indent + "   ")).join("\n") : "(empty map)";
  if (typeof reply === "string") return /\n/.test(reply) ? visibleLines(reply.replaceAll("\r\n", "\n")) : '"' + shown(reply).replaceAll('"', '\\"') + '"';
  return '"' + shown(reply).replaceAll('"', '\\"') + '"';
}

/** Names and options of commands, from COMMAND DOCS. */
async function load() {
  const [reply] = await commands([["COMMAND", "DOCS"]]);
  const table = new Map();
  const fields = map => Object.fromEntries(pairs(map).map(([name, value]) => [name, value]));
  const tokens = list => (list || []).flatMap(argument => { const f = fields(argument); return [...(f.token ? [f.token] : []), ...tokens(f.arguments)]; });
  const add = (name, docs, before) => {
    const f = fields(docs), full = before + name.split("|").pop().toUpperCase();
    table.set(full, { summary: f.summary || "", tokens: [...new Set(tokens(f.arguments))], syntax: syntax(f.arguments) });
    pairs(f.subcommands).forEach(([sub, more]) => add(sub, more, full + " "));
  };
  const syntax = list => (list || []).map(argument => {
    const f = fields(argument), flags = [].concat(f.flags || []), inner = f.arguments ? syntax(f.arguments).split("\u0000").join(" ") : "";
    const name = f.type === "pure-token" ? f.token : (f.token ? f.token + " " : "") + (f.type === "oneof" ? fieldsOr(f.arguments) : f.arguments ? inner : f.name);
    return flags.includes("optional") ? "[" + name + "]" : name;
  }).join(" ");
  const fieldsOr = list => list.map(one => syntax([one])).join(" | ");
  pairs(reply).forEach(([name, docs]) => add(name, docs, ""));
  return table;
}

export function Command() {
  const { me } = useShared();
  const [{ value: table }] = useLoaded(load, []);
  const [lines, setLines] = useState([]), [line, setLine] = useState(""), [db, setDb] = useState(0), [past, setPast] = useState([]), [back, setBack] = useState(0), [busy, setBusy] = useState(false);
  const input = useRef(null), end = useRef(null);
  useEffect(() => { end.current?.scrollIntoView({ block: "nearest" }); }, [lines]);
  useEffect(() => { input.current?.focus(); }, []);
  const upper = line.trimStart().toUpperCase(), typed = upper.split(/\s+/);
  const known = table && (table.get(typed.slice(0, 2).join(" ")) ? typed.slice(0, 2).join(" ") : table.get(typed[0]) ? typed[0] : null);
  const last = /\s$/.test(line) ? "" : typed[typed.length - 1];
  const choices = !table || !upper ? [] : [...table.keys()].filter(name => name.startsWith(upper)).sort().slice(0, 12);
  const options = known && !choices.length ? table.get(known).tokens.filter(token => token.startsWith(last)).slice(0, 12) : [];
  const complete = choice => {
    const next = choices.length ? choice : line.slice(0, line.length - last.length) + choice;
    setLine(next + " ");
    input.current?.focus();
  };
  const send = async event => {
    event.preventDefault();
    const found = words(line);
    if (typeof found === "string") return setLines(was => [...was, { line, text: "(error) " + found }]);
    if (!found.length || busy) return;
    setBusy(true);
    const began = performance.now();
    let text;
    try { text = spelled((await commands([found], db))[0]); } catch (error) { text = "(error) " + error.message; }
    setLines(was => [...was.slice(-199), { line, db, text, ms: Math.round(performance.now() - began) }]);
    setPast(was => [...was.filter(one => one !== line), line].slice(-500));
    setBack(0);
    setLine("");
    setBusy(false);
  };
  const keys = event => {
    if (event.key === "Tab" && !event.shiftKey && (choices.length || options.length) && line.trim()) {
      event.preventDefault();
      const list = choices.length ? choices : options, typedSo = choices.length ? upper : last;
      // As far as all agree, or else the first.
      let common = list[0];
      for (const one of list) while (!one.startsWith(common)) common = common.slice(0, -1);
      if (list.length > 1 && common.length > typedSo.length) setLine(choices.length ? common : line.slice(0, line.length - last.length) + common); else complete(list[0]);
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      event.preventDefault();
      const to = Math.max(0, Math.min(past.length, back + (event.key === "ArrowUp" ? 1 : -1)));
      setBack(to);
      setLine(to ? past[past.length - to] : "");
    }
  };
  return html`<h1 class="hide">Command</h1><section class="panel prompt">
    <div class="lines mono" role="log" aria-label="Replies" tabindex="0">${lines.length ? null : html`<p class="soft">Commands as in redis-cli. Tab completes, the arrows go back. Those that wait get five seconds; those about a connection, as SUBSCRIBE or MULTI, are refused.${me.writes === "yes" ? "" : " Nothing can be changed from here now."}</p>`}
      ${lines.map((one, n) => html`<div key=${n}><div class="asked"><b>${one.db ? "[" + one.db + "]" : ""}> ${one.line}</b> <span class="soft">${one.ms === undefined ? "" : one.ms + " ms"}</span></div><pre>${one.text}</pre></div>`)}
      <div ref=${end}></div></div>
    <form onSubmit=${send}><label>Database <select value=${db} onChange=${e => setDb(+e.target.value)}>${Array.from({ length: Math.min(me.databases, 256) }, (_, n) => html`<option value=${n}>${n}</option>`)}</select></label>
      <input ref=${input} class="mono grow" aria-label="Command" value=${line} onInput=${e => { setLine(e.target.value); setBack(0); }} onKeyDown=${keys} autocomplete="off" autocapitalize="off" spellcheck=${false} readonly=${busy}/>
      <button type="submit" class="main" disabled=${busy}>${busy ? "…" : "Run"}</button></form>
    <div class="hints" aria-live="polite">${(choices.length ? choices : options).map(choice => html`<button type="button" class="tool mono" key=${choice} onClick=${() => complete(choice)}>${choice}</button>`)}
      ${known && table.get(known) ? html`<p class="soft"><span class="mono">${known} ${table.get(known).syntax}</span><br/>${table.get(known).summary}</p>` : null}</div>
  </section>`;
}
