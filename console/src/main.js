// The console of Evenkeel: who is it, and the frame around the views.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { follow, get, post, whenOut } from "./api.js";
import { html } from "./html.js";
import { Keys } from "./keys.js";
import { Command } from "./prompt.js";
import { set, shared, usePlace, useShared } from "./state.js";
import { clock, shown, zone } from "./text.js";
import { HotKeys } from "./hotkeys.js";
import { Clients, Disk, Memory, Sources } from "./views.js";
import { Slowlog } from "./slowlog.js";
import { Waits } from "./waits.js";

const VIEWS = {
  waits: ["Waits", Waits], slowlog: ["Slow log", Slowlog], keys: ["Keys", Keys], hotkeys: ["Hot keys", HotKeys], clients: ["Clients", Clients],
  memory: ["Memory", Memory], disk: ["Disk and replicas", Disk], sources: ["Sources", Sources], command: ["Command", Command],
};

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  set({ theme });
}

function kept(name, value) {
  // A browser may keep nothing for a page.
  try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; }
}

async function who() {
  try {
    set({ me: await get("login"), trouble: null });
  } catch (error) {
    set({ me: false, trouble: error.status === 401 ? null : error.message });
  }
}

function Login() {
  const { trouble } = useShared();
  const [wrong, setWrong] = useState(null);
  const send = async event => {
    event.preventDefault();
    const { user, password } = event.currentTarget.elements;
    try {
      set({ me: await post("login", { user: user.value, password: password.value }) });
    } catch (error) {
      setWrong(error.message);
      password.value = "";
      password.focus();
    }
  };
  const local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  return html`<main id="main" class="login"><form class="panel" onSubmit=${send}>
    <h1>evenkeel</h1><p class="soft">${location.host}</p>
    <label>User <input name="user" autocomplete="username" defaultValue="default" autocapitalize="off" spellcheck=${false}/></label>
    <label>Password <input name="password" type="password" autocomplete="current-password" autofocus/></label>
    <button class="main" type="submit">Log in</button>
    ${wrong || trouble ? html`<p class="bad" role="alert">${wrong || trouble}</p>` : null}
    ${location.protocol === "http:" && !local ? html`<p class="soft">This connection is not encrypted: the password can be read on its way.</p>` : null}
  </form></main>`;
}

function Writes({ me }) {
  const [wrong, setWrong] = useState(null);
  const left = Math.max(0, Math.ceil((me.writes_until_ms - Date.now()) / 60e3));
  useEffect(() => {
    if (me.writes !== "yes" || !me.writes_until_ms) return;
    const timer = setTimeout(who, me.writes_until_ms - Date.now() + 500);
    return () => clearTimeout(timer);
  }, [me]);
  const ask = async allow => {
    try {
      // Without a password there is no session yet that could be allowed to write.
      if (me.by === "nothing") await post("login", { user: "default", password: "" });
      set({ me: await post("writes", { allow }) });
    } catch (error) { setWrong(error.message); }
  };
  if (wrong) return html`<span class="bad">${wrong}</span>`;
  if (me.writes === "no") return html`<span>read only</span>`;
  return me.writes === "locked" ? html`<button type="button" class="tool" onClick=${() => ask(true)}>Allow writes for 15 minutes</button>`
    : html`<span class="bad">may write for ${left} min</span> <button type="button" class="tool" onClick=${() => ask(false)}>Lock</button>`;
}

function Clock() {
  const { live, now } = useShared();
  const [, again] = useState(0);
  useEffect(() => { const timer = setInterval(() => again(n => n + 1), 1000); return () => clearInterval(timer); }, []);
  const t = live && now ? now.time_ms : Date.now();
  return html`<span title=${live ? "Figures come every second" : "No figures come"}><span class=${"dot" + (live ? "" : " off")} aria-hidden="true"></span>${live ? "live" : "not live"}, ${clock(t, true)} <span class="wide">${zone(t)}</span></span>`;
}

function App() {
  const { me, theme } = useShared();
  const { view } = usePlace();
  useEffect(() => me ? follow(now => set({ now }), (kind, what, second) => set({ news: { ...shared.news, [kind]: second } }), (live, trouble) => set(trouble || live ? { live, trouble } : { live })) : undefined, [!!me, me?.user]);
  const [name, View] = VIEWS[view] || VIEWS.waits;
  useEffect(() => { document.title = name + " · " + location.host + " · Evenkeel"; }, [name]);
  if (me === null) return html`<main id="main"><p class="soft">…</p></main>`;
  if (!me) return html`<${Login}/>`;
  const leave = async () => { await post("logout", {}).catch(() => {}); set({ me: null, now: null }); who(); };
  return html`
    <a class="skip" href="#main" onClick=${e => { e.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
    <header><div class="head">
      <div class="who"><span class="brand">evenkeel</span><span>${location.host}</span><span class="soft wide">${shared.now?.role ? shared.now.role.name + " · " : ""}${me.version}</span></div>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([id, [title]]) => html`<a key=${id} href=${"#" + id} aria-current=${id === (VIEWS[view] ? view : "waits") ? "page" : undefined}>${title}</a>`)}</nav>
      <div class="tools"><${Clock}/><span class="wide">${shown(me.user)}</span><${Writes} me=${me}/>
        <button class="tool" type="button" onClick=${() => { const other = theme === "dark" ? "light" : "dark"; kept("theme", other); dress(other); }}>${theme === "dark" ? "Light" : "Dark"}</button>
        ${me.by === "cookie" ? html`<button class="tool" type="button" onClick=${leave}>Log out</button>` : null}</div>
    </div></header>
    <main id="main" tabindex="-1"><${View} key=${name}/></main>
    <footer><span>Times in ${zone(Date.now())}</span><span>Latency is an upper bound, from the begin of the turn in which a request came, without the network.</span><a href="console/licences.txt">Licences</a></footer>`;
}

// A session that ended is a login again.
whenOut(() => set({ me: false, live: false }));
dress(kept("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
render(html`<${App}/>`, document.body);
who();
