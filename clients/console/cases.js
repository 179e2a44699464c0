// The console in a real browser, against a server with real data: what people see, do, and must not be able to.
// SCREENSHOTS=folder keeps what was seen.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import net from "node:net";
import { chromium } from "playwright-core";

const host = process.env.EVENKEEL_HOST || "127.0.0.1";
const port = +process.env.EVENKEEL_PORT, at = `http://${host}:${process.env.EVENKEEL_HTTP_PORT}`;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const shots = process.env.SCREENSHOTS;
const PATIENCE = 90_000;

/** A connection that speaks RESP. */
function connection() {
  const socket = net.connect(port, host);
  let text = Buffer.alloc(0);
  const waiting = [];
  socket.on("data", bytes => {
    text = Buffer.concat([text, bytes]);
    for (let end = whole(text, 0); end > 0; end = whole(text, 0)) {
      waiting.shift()?.(text.subarray(0, end).toString());
      text = text.subarray(end);
    }
  });
  const whole = (bytes, from) => {
    const line = bytes.indexOf("\r\n", from);
    if (line < 0) return -1;
    const n = +bytes.subarray(from + 1, line).toString();
    if (bytes[from] === 36) return n < 0 ? line + 2 : bytes.length >= line + 4 + n ? line + 4 + n : -1;
    if (bytes[from] !== 42) return line + 2;
    let end = line + 2;
    for (let i = 0; i < n && end > 0; i++) end = whole(bytes, end);
    return end;
  };
  const call = (...words) => new Promise(done => {
    waiting.push(done);
    const parts = words.map(word => Buffer.isBuffer(word) ? word : Buffer.from(String(word)));
    socket.write(Buffer.concat([Buffer.from(`*${parts.length}\r\n`), ...parts.flatMap(part => [Buffer.from(`$${part.length}\r\n`), part, Buffer.from("\r\n")])]));
  });
  return { call, end: () => socket.end() };
}

const client = connection();
const call = client.call;
const hostile = ["<img src=x onerror=window.pwned=1>", "rtl\u202egnp.exe", "</script><script>window.pwned=1</script>", "javascript:window.pwned=1", "a\nb\u001b[31m"];

async function fill() {
  await call("FLUSHALL");
  await call("CLIENT", "SETNAME", "filler");
  for (let n = 0; n < 120; n++) await call("SET", `user:${n}`, JSON.stringify({ name: "user " + n, n }));
  for (const name of hostile) await call("SET", name, name);
  await call("SET", Buffer.from([0xff, 0x00, 0x61]), "binary name");
  await call("SET", "bytes", Buffer.from([0, 1, 2, 255]));
  await call("SET", "long", "x".repeat(200_000));
  await call("RPUSH", "list", ...Array.from({ length: 250 }, (_, n) => "element " + n));
  await call("HSET", "hash", ...Array.from({ length: 250 }, (_, n) => ["field " + n, hostile[n % hostile.length]]).flat());
  await call("SADD", "set", "a", "b", ...hostile);
  await call("ZADD", "zset", 1.5, "low", 2.5, "high");
  await call("XADD", "stream", "*", "kind", "order", "note", hostile[0]);
}

/** Work that makes others wait: a script that reads much beside short requests, on the same keys. */
async function work() {
  const [heavy, light] = [connection(), connection()];
  await heavy.call("CLIENT", "SETNAME", "billing-export");
  await light.call("CLIENT", "SETNAME", "checkout-api");
  for (let round = 0; round < 8; round++) {
    const script = heavy.call("EVAL", "local n = 0 for i = 1, 300000 do n = n + i % 7 end redis.call('set', KEYS[1], n) return n", 1, "user:1");
    await Promise.all(Array.from({ length: 200 }, (_, n) => light.call("SET", "user:" + n % 20, n)));
    await script;
  }
  heavy.end();
  light.end();
}

let bad = 0;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });

async function page(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, timezoneId: "Europe/Berlin", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.troubles = [];
  page.on("pageerror", error => page.troubles.push(error.message));
  // A refused request is a sentence in the page; what the browser itself notes of it is no trouble.
  page.on("console", message => message.type() === "error" && !/Failed to load resource/.test(message.text()) && page.troubles.push(message.text()));
  return page;
}

// CASES=text runs only those whose name has it.
const wanted = process.env.CASES || "";

async function test(name, body, options) {
  if (!name.includes(wanted)) return;
  const seen = await page(options);
  try {
    await body(seen);
    const pwned = await seen.evaluate(() => window.pwned);
    if (pwned) throw new Error("a name became code");
    if (seen.troubles.length) throw new Error(seen.troubles.join("; "));
    console.log("ok " + name);
  } catch (error) {
    bad++;
    await shot(seen, "not-ok").catch(() => {});
    console.log(`not ok ${name}: ${String(error.message || error).split("\n").slice(0, 6).join(" | ")}`);
  }
  await seen.context().close().catch(() => {});
}

const same = (what, wanted) => { if (what !== wanted) throw new Error(`${JSON.stringify(what)} instead of ${JSON.stringify(wanted)}`); };
const holds = (text, part) => { if (!text.includes(part)) throw new Error(`${JSON.stringify(part)} is not in ${JSON.stringify(text.slice(0, 600))}`); };

async function see(page, view) {
  await page.goto(`${at}/#${view}`);
  await page.waitForSelector("nav a[aria-current=page]");
}

/** No violation of the rules for people who see little, or use no mouse. */
async function accessible(page) {
  // The policy of the page lets no script in; the test comes in by the debugger.
  const found = await page.evaluate(`(() => { ${axe}; return axe.run(document, { resultTypes: ["violations"] }); })()`);
  const list = found.violations.map(v => `${v.id} at ${v.nodes.slice(0, 3).map(n => n.target.join(" ")).join(", ")}`);
  if (list.length) throw new Error(list.join("; "));
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` });
}

const START_HOTKEYS = ["HOTKEYS", "START", "METRICS", "2", "CPU", "NET", "COUNT", "30", "DURATION", "600"];

await fill();
await call("CONFIG", "SET", "slowlog-log-slower-than", "1000");
await call(...START_HOTKEYS);
await work();
await call("HOTKEYS", "STOP");
await call("EVENKEEL", "PREFIXES", "RUN");

const VIEWS = { waits: "#heat", slowlog: "table.list tr.rec", keys: "table.list tbody button", hotkeys: "table.list a", clients: "table.list tbody tr", memory: "[aria-label='Largest keys'] a", disk: ".facts2", sources: "text=EVENKEEL SOURCE ADD makes one", command: "input.mono" };
for (const [look, options] of Object.entries({
  light: { colorScheme: "light" }, dark: { colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 800 }, colorScheme: "light", isMobile: true, hasTouch: true },
})) {
  for (const [view, sign] of Object.entries(VIEWS)) {
    await test(`${view}, ${look}: is there, fits, and is accessible`, async page => {
      await see(page, view);
      await page.waitForSelector(sign, { state: "attached" });
      if (view === "waits") await page.waitForSelector("#verdict");
      if (view === "slowlog") await page.locator("tr.rec button").first().click();
      await page.waitForTimeout(300);
      await accessible(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) throw new Error(`${wide} pixels too wide`);
      await shot(page, `${view}-${look}`);
    }, options);
  }
}

await test("waits: now, the heaviest client, and who waited", async page => {
  // Of the last minute, however long what came before took.
  await work();
  await see(page, "waits");
  await page.waitForFunction(() => /waits? for|Nobody waits/.test(document.querySelector("#verdict")?.textContent || ""));
  await page.waitForFunction(() => /billing-export/.test(document.querySelector("table.work")?.textContent || ""));
  holds(await page.textContent(".tools"), "live");
  holds(await page.textContent("footer"), "Europe/Berlin");
});

await test("waits: a selection stands in the address, and the same link shows it", async page => {
  await see(page, "waits");
  await page.waitForSelector("#verdict");
  await page.getByLabel(/Go to a time of day/).fill("00:01");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => location.hash.includes("t="));
  const hash = await page.evaluate(() => location.hash), title = await page.textContent(".two .soft");
  holds(title, "00:01:00");
  const other = await page.context().newPage();
  await other.goto(at + "/" + hash);
  await other.waitForSelector(".two .soft");
  same(await other.textContent(".two .soft"), title);
  await page.keyboard.press("Tab");
  await page.locator(".chart[tabindex]").focus();
  await page.keyboard.press("Shift+ArrowRight");
  await page.waitForFunction(before => location.hash !== before, hash);
  await page.keyboard.press("n");
  await page.waitForFunction(() => location.hash === "#waits");
});

await test("waits: what happens is there without a reload", async page => {
  let told;
  const first = new Promise(done => { told = done; });
  const incident = { from_ms: Date.now() - 120e3, to_ms: Date.now() - 60e3, waits: 7, us: 90000, longest_us: 48000, for: "commit",
    culprit: { kind: "client", name: "night-job", words: [] }, waiter: { kind: "client", name: "shop", words: [] } };
  const seen = { incidents: 0, records: 0 };
  await page.route("**/api/v1/incidents*", route => { seen.incidents++; route.fulfill({ json: { incidents: seen.incidents > 1 ? [incident] : [] } }); told(); });
  await page.route("**/api/v1/records*", route => { seen.records++; route.continue(); });
  await page.route("**/api/v1/stream", async route => {
    await first;
    await page.waitForTimeout(500);
    route.fulfill({ contentType: "text/event-stream", body: "retry: 60000\nevent: hello\ndata: {}\n\n: \n\nid: 7\nevent: incident\ndata: {}\n\nid: 7\nevent: wait\ndata: {}\n\n" });
  });
  await see(page, "waits");
  // Without the events the list is asked for again after half a minute.
  await page.waitForFunction(() => document.querySelector(".inc")?.textContent.includes("night-job made shop wait"), null, { timeout: 10_000 });
  same(seen.incidents, 2);
  if (seen.records < 2) throw new Error("the records were not asked for again");
});

await test("waits: a mark of the real server reaches the page", async page => {
  await see(page, "waits");
  await page.waitForSelector("#verdict");
  await page.waitForFunction(() => /waits? for|Nobody waits/.test(document.querySelector("#verdict").textContent));
  // Without the event it is asked for once a minute.
  const again = page.waitForRequest(request => /history\?.*columns=144/.test(request.url()), { timeout: 15_000 });
  await call("CONFIG", "SET", "slowlog-max-len", "200");
  await again;
});

await test("slow log: a request opens to where its time went", async page => {
  await see(page, "slowlog");
  const row = page.locator("tr.rec", { hasText: "billing-export" }).first();
  await row.locator("button").click();
  await page.waitForSelector("tr.more");
  const text = await page.textContent("tr.more");
  holds(text, "EVAL");
  holds(text, "its time");
  holds(text, "ran");
  await page.getByRole("button", { name: "What else this client waited for" }).click();
  await page.waitForFunction(() => /This client has gone/.test(document.querySelector("tr.more")?.textContent || ""));
});

await test("slow log: of a client that is there, what else it waited for", async page => {
  const slow = connection();
  await slow.call("CLIENT", "SETNAME", "reporting");
  await slow.call("EVAL", "local n = 0 for i = 1, 3000000 do n = n + i % 7 end return n", 0);
  await see(page, "slowlog");
  await page.locator("tr.rec", { hasText: "reporting" }).first().locator("button").click();
  await page.getByRole("button", { name: "What else this client waited for" }).click();
  await page.waitForFunction(() => /requests/.test(document.querySelector("tr.more")?.textContent || ""));
  await accessible(page);
  slow.end();
});

await test("hot keys: started by those who may write, and shown as they are used", async page => {
  await call("HOTKEYS", "RESET");
  await see(page, "hotkeys");
  await page.waitForSelector("text=No keys are watched");
  holds(await page.textContent("main"), "HOTKEYS START METRICS");
  same(await page.getByRole("button", { name: "Watch for a minute" }).count(), 0);
  await call("CONFIG", "SET", "console-writes", "yes");
  await page.reload();
  await page.getByRole("button", { name: "Allow writes for 15 minutes" }).click();
  await page.getByRole("button", { name: "Watch for a minute" }).click();
  await page.waitForSelector("text=Keys are watched");
  for (let n = 0; n < 50; n++) await call("GET", "long");
  await call("GET", hostile[0]);
  await page.waitForFunction(() => document.querySelector("[aria-label='By network bytes']")?.textContent.includes("long"));
  await page.waitForFunction(name => document.querySelector("[aria-label='By run time']").textContent.includes(name), hostile[0]);
  await page.getByRole("button", { name: "Stop" }).click();
  await page.waitForSelector("text=Keys that were watched");
  await page.locator("[aria-label='By network bytes'] a").first().click();
  await page.waitForFunction(() => /bytes 0 to 65,536 of 200,000/.test(document.body.textContent));
  await page.getByRole("button", { name: "Lock" }).click();
  await page.waitForSelector("text=Allow writes for 15 minutes");
  await call("CONFIG", "SET", "console-writes", "no");
});

await test("memory: prefixes are counted, grow, and lead to their keys", async page => {
  await see(page, "memory");
  const panel = page.getByLabel("Memory by prefix");
  const row = () => page.evaluate(() => [...document.querySelectorAll("[aria-label='Memory by prefix'] tbody tr")].find(row => row.cells[0].textContent === "user:")?.textContent || "");
  await page.waitForSelector("[aria-label='Memory by prefix'] tbody tr");
  holds(await row(), "120");
  holds(await page.textContent("[aria-label='Largest keys']"), "long");
  for (let n = 0; n < 40; n++) await call("SET", `user:more:${n}`, "x".repeat(1000));
  await panel.getByRole("button", { name: "Count now" }).click();
  await page.waitForFunction(() => [...document.querySelectorAll("[aria-label='Memory by prefix'] tbody tr")].some(row => row.cells[0].textContent === "user:" && /\+4\d/.test(row.textContent)));
  holds(await row(), "160");
  await panel.locator("a", { hasText: "user:more:" }).click();
  await page.waitForFunction(() => /40 keys shown/.test(document.body.textContent));
  for (let n = 0; n < 40; n++) await call("DEL", `user:more:${n}`);
});

await test("memory: a user is shown the prefixes of its own keys", async page => {
  await call("CONFIG", "SET", "requirepass", "hidden");
  await call("AUTH", "hidden");
  try {
    await call("ACL", "SETUSER", "zoe", "on", ">word", "~z*", "~user:*", "-@all", "+@read", "+info", "+evenkeel");
    await page.goto(at + "/#memory");
    await page.getByLabel("User").fill("zoe");
    await page.getByLabel("Password").fill("word");
    await page.keyboard.press("Enter");
    await page.waitForSelector("[aria-label='Memory by prefix'] tbody tr");
    same(await page.evaluate(() => [...document.querySelectorAll("[aria-label='Memory by prefix'] tbody tr")].map(row => row.cells[0].textContent).filter(text => !text.startsWith("user:")).join()), "");
    const keys = await page.textContent("[aria-label='Largest keys']");
    holds(keys, "zset");
    if (keys.includes("long")) throw new Error("another's key is named");
  } finally {
    await call("CONFIG", "SET", "requirepass", "");
    await call("ACL", "DELUSER", "zoe");
  }
});

await test("keys: names cannot pass for anything else", async page => {
  await see(page, "keys");
  await page.waitForSelector("table.list tbody button");
  // While a page is on its way there is no button.
  for (let n = 0; n < 600 && !(await page.textContent(".panel p[aria-live]")).includes("all 133"); n++) {
    if (await page.getByRole("button", { name: "More" }).count()) await page.getByRole("button", { name: "More" }).click();
    await page.waitForTimeout(100);
  }
  const text = await page.textContent("table.list");
  holds(text, hostile[0]);
  holds(text, "rtl\\u202egnp.exe");
  holds(text, "\\xff\\x00a");
  holds(text, "a\\nb\\x1b[31m");
  holds(await page.textContent(".panel p[aria-live]"), "all 133 looked at");
});

await test("keys: a pattern, and values in pages", async page => {
  await see(page, "keys?match=user:1*");
  await page.waitForFunction(() => /31 keys shown/.test(document.body.textContent));
  for (const [key, part, more] of [["list", "element 99", "element 150"], ["hash", "field ", null], ["zset", "high", null], ["set", "b", null], ["stream", "order", null]]) {
    await see(page, "keys?key=t" + key);
    await page.waitForFunction(part => (document.querySelector("[aria-label=Value]")?.textContent || "").includes(part), part);
    if (more) {
      await page.locator("[aria-label=Value]").getByRole("button", { name: "More" }).click();
      await page.waitForFunction(more => document.querySelector("[aria-label=Value]").textContent.includes(more), more);
    }
  }
  await see(page, "keys?key=tlong");
  await page.waitForFunction(() => /bytes 0 to 65,536 of 200,000/.test(document.body.textContent));
  await page.getByRole("button", { name: "Next" }).click();
  await page.waitForFunction(() => /bytes 65,536 to/.test(document.body.textContent));
  await see(page, "keys?key=tbytes");
  await page.waitForFunction(() => /00 01 02 ff/.test(document.body.textContent));
  await see(page, "keys?key=tuser:119");
  await page.waitForFunction(() => /"name": "user 119"/.test(document.querySelector("pre")?.textContent || ""));
  await shot(page, "value");
});

await test("command: completes, quotes, shows errors, refuses writes", async page => {
  await see(page, "command");
  const input = page.getByLabel("Command", { exact: true });
  await page.waitForFunction(() => document.activeElement?.getAttribute("aria-label") === "Command");
  const run = async (line, wanted) => {
    await input.fill(line);
    await page.keyboard.press("Enter");
    await page.waitForFunction(wanted => (document.querySelector(".lines > div:nth-last-child(2) pre")?.textContent || "").includes(wanted), wanted);
  };
  await input.fill("zrev");
  await page.waitForSelector(".hints button");
  await page.keyboard.press("Tab");
  holds(await input.inputValue(), "ZREVRAN");
  await input.fill("zincr");
  await page.waitForFunction(() => document.querySelector(".hints button")?.textContent === "ZINCRBY");
  await page.keyboard.press("Tab");
  same(await input.inputValue(), "ZINCRBY ");
  await run('ECHO "\\xff\\x01 \\"a\\""', '"\\xff\\x01 \\"a\\""');
  await run("LRANGE list 0 1", '1) "element 0"\n2) "element 1"');
  await run("NOPE", "(error) ERR unknown command");
  await run("SET user:1 changed", "(error) READONLY");
  await run("SUBSCRIBE x", "(error) ERR this command is about a connection");
  await run('GET "' + hostile[0] + '"', hostile[0]);
  await run("HGETALL nosuch", "(empty map)");
  await page.keyboard.press("ArrowUp");
  same(await input.inputValue(), "HGETALL nosuch");
  await shot(page, "command");
});

await test("clients: names of clients are texts", async page => {
  const named = connection();
  await named.call("CLIENT", "SETNAME", "<script>window.pwned=1</script>");
  await see(page, "clients");
  await page.waitForFunction(() => document.querySelector("table.list")?.textContent.includes("<script>window.pwned"));
  await page.getByLabel("Find").fill("filler");
  await page.waitForFunction(() => document.querySelectorAll("table.list tbody tr").length === 1);
  named.end();
});

await test("writes: allowed for a while if the server says so, and locked again", async page => {
  await call("CONFIG", "SET", "console-writes", "yes");
  await see(page, "keys?key=tset");
  await page.getByRole("button", { name: "Allow writes for 15 minutes" }).click();
  await page.waitForFunction(() => /may write for 1[45] min/.test(document.body.textContent));
  page.on("dialog", dialog => dialog.accept());
  await page.getByRole("button", { name: "Delete" }).click();
  await page.waitForFunction(() => !location.hash.includes("key="));
  same(await call("EXISTS", "set"), ":0\r\n");
  await page.getByRole("button", { name: "Lock" }).click();
  await page.waitForSelector("text=Allow writes for 15 minutes");
  await call("CONFIG", "SET", "console-writes", "no");
  await page.reload();
  await page.waitForFunction(() => /read only/.test(document.querySelector(".tools")?.textContent || ""));
});

await test("login: asked for, refused, and ended when the user changes", async page => {
  await call("CONFIG", "SET", "requirepass", "hidden");
  await call("AUTH", "hidden");
  try {
    await call("ACL", "SETUSER", "oncall", "on", ">word", "%R~*", "-@all", "+@read", "+info", "+slowlog|get", "+client|list", "+evenkeel");
    await page.goto(at + "/");
    await page.getByLabel("User").fill("oncall");
    await page.getByLabel("Password").fill("wrong");
    await accessible(page);
    await shot(page, "login");
    await page.keyboard.press("Enter");
    await page.waitForSelector("[role=alert]");
    await page.getByLabel("Password").fill("word");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#verdict");
    holds(await page.textContent(".tools"), "oncall");
    const cookie = (await page.context().cookies())[0];
    same(`${cookie.name} ${cookie.httpOnly} ${cookie.sameSite} ${cookie.secure}`, "evenkeel true Strict false");
    same(await page.evaluate(() => document.cookie), "");
    await page.goto(at + "/#keys?key=tzset");
    await page.waitForFunction(() => /high/.test(document.body.textContent));
    await call("ACL", "SETUSER", "oncall", ">other");
    await page.goto(at + "/#clients");
    await page.waitForSelector("input[type=password]");
  } finally {
    await call("CONFIG", "SET", "requirepass", "");
    await call("ACL", "DELUSER", "oncall");
  }
});

await test("an answer that comes before the page is drawn is not missed", async page => {
  // The first frame is late, so the answer is there before anything hears of it.
  await page.addInitScript(() => {
    const real = requestAnimationFrame;
    window.requestAnimationFrame = draw => setTimeout(() => real(draw), 1500);
    const timeout = setTimeout;
    window.setTimeout = (call, ms, ...rest) => timeout(call, ms === 35 || ms === 100 ? 1500 : ms, ...rest);
  });
  await page.goto(at + "/#memory");
  await page.waitForSelector("nav", { timeout: 15_000 });
});

await test("the policy lets no script in", async page => {
  await page.goto(at + "/");
  await page.waitForSelector("nav");
  const done = await page.evaluate(() => {
    const tried = {};
    const broken = document.createElement("div");
    try { broken.innerHTML = "<img src=x onerror='window.pwned=1'>"; tried.markup = "allowed"; } catch (error) { tried.markup = error.name; }
    const script = document.createElement("script");
    try { script.text = "window.pwned=1"; document.body.append(script); tried.script = window.pwned ? "ran" : "refused"; } catch (error) { tried.script = error.name; }
    return tried;
  });
  page.troubles.length = 0;
  same(done.markup, "TypeError");
  if (done.script === "ran") throw new Error("a script ran");
});

await browser.close();
client.end();
process.exit(bad ? 1 : 0);
