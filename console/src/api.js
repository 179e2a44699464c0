// Requests to the server. Each answer is the reply of a command.

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let out = () => {};
/** Has `tell()` called when the session has ended. */
export const whenOut = tell => { out = tell; };

async function ask(path, options) {
  let response;
  try {
    response = await fetch("/api/v1/" + path, { credentials: "same-origin", ...options });
  } catch {
    throw new Problem(0, "The server does not answer.");
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401 && !path.startsWith("login")) out();
  if (!response.ok) throw new Problem(response.status, body.detail || response.statusText);
  return body;
}

export const get = (path, parameters = {}) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== undefined)).toString();
  return ask(query ? path + "?" + query : path);
};

export const post = (path, body) => ask(path, {
  method: "POST",
  headers: { "Content-Type": "application/json", "Evenkeel-Console": "1" },
  body: JSON.stringify(body),
});

/** Runs commands, each a list of words; gives their replies, errors as {error}. */
export async function commands(list, db = 0) {
  const replies = [];
  for (let at = 0; at < list.length; at += 64) {
    replies.push(...await post("commands?db=" + db, list.slice(at, at + 64)));
  }
  return replies;
}

/** Runs one command. An error reply is thrown. */
export async function command(words, db) {
  const [reply] = await commands([words], db);
  if (reply && reply.error) throw new Problem(200, reply.error);
  return reply;
}

/** The pairs of a map, however it came. */
export const pairs = reply => Array.isArray(reply) ? reply.flatMap((_, at) => at % 2 ? [] : [[reply[at], reply[at + 1]]]) : reply?.map || [];

/** The fields of INFO, by name. */
export function info(text) {
  const fields = {};
  for (const line of String(text || "").split("\r\n")) {
    const at = line.indexOf(":");
    if (at > 0 && line[0] !== "#") fields[line.slice(0, at)] = line.slice(at + 1);
  }
  return fields;
}

/** When the last snapshot was saved, in seconds since 1970; 0: none since the start, which INFO gives as the time then. */
export const savedAt = of => +of.rdb_last_bgsave_time_sec >= 0 || +of.rdb_saves > 0 ? +of.rdb_last_save_time : 0;

/**
 * Follows the server while the page is seen: `hear(now)` each second, `happened(kind, what, second)` for each wait, incident
 * and mark, `told(live)`. Gives a function that ends it.
 */
export function follow(hear, happened, told) {
  let source = null;
  const close = () => { source?.close(); source = null; };
  const open = () => {
    if (document.hidden || source) return;
    source = new EventSource("/api/v1/stream");
    source.addEventListener("second", event => { told(true); hear(JSON.parse(event.data)); });
    for (const kind of ["wait", "incident", "mark"]) {
      source.addEventListener(kind, event => happened(kind, JSON.parse(event.data), event.lastEventId));
    }
    source.addEventListener("failed", event => told(false, JSON.parse(event.data).error));
    source.onerror = () => {
      told(false);
      if (source?.readyState !== 2) return;
      // A stream that is refused does not say why; the same question does.
      close();
      get("now").catch(error => told(false, error.message));
      setTimeout(open, 5000);
    };
  };
  // A hidden page gives its connection back.
  const turned = () => document.hidden ? close() : open();
  document.addEventListener("visibilitychange", turned);
  open();
  return () => { document.removeEventListener("visibilitychange", turned); close(); };
}
