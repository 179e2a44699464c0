//! Responses as bytes, appended to an output buffer.
//!
//! - W1: a response to HEAD, or with status 304, has no body, even if its head announces one.
//! - W2: a response tells when the connection ends with it.

use crate::Condition;
use crate::date::{LEN as DATE, spell};
use crate::etag;
use crate::reply::{Kept, escape};

/// The parts of a request that shape its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// HEAD: no body.
    pub head: bool,
    /// Whether another request may follow.
    pub keep: bool,
    pub http11: bool,
}

impl Framing {
    /// For a response that ends the connection.
    pub const LAST: Framing = Framing { head: false, keep: false, http11: true };

    pub fn of(request: &crate::Request<'_>) -> Framing {
        Framing { head: request.method == crate::Method::Head, keep: request.keep, http11: request.http11 }
    }
}

pub const JSON: &str = "application/json";
pub const EVENTS: &str = "text/event-stream";
pub const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Times that hold for the items of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Life {
    /// How long items are good from their load on, and how long they are kept beyond that.
    pub ttl_ms: u64,
    pub stale_ms: u64,
    /// The longest time a load takes. It may have read the row at its start.
    pub load_ms: u64,
    /// How long caches may keep an item without asking.
    pub max_age_ms: u64,
    /// A moment before the item was read (milliseconds since 1970).
    pub now_ms: u64,
    /// At `now_ms` no item was present whose row had changed by this moment (milliseconds since 1970).
    pub settled_ms: u64,
}

/// This long after a second began, no more changes of it follow: its rest, and as much for clocks that
/// differ.
const SECOND_OVER_MS: u64 = 2000;

/// How long caches may keep an item, and when it changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freshness {
    /// Seconds during which caches need not ask; 0: they must ask each time.
    max_age_s: u64,
    changed: Option<Changed>,
}

/// The last change of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Changed {
    /// In seconds since 1970.
    at_s: u64,
    /// Whether the date identifies the item's state (RFC 9110, 8.8.2.2): it did not change again within the
    /// second.
    exact: bool,
}

/// The effect of a condition on an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Send,
    /// 304: the client has this state.
    Unchanged,
    /// 412: this is not the state that the client wants.
    Failed,
}

impl Freshness {
    /// A cache may keep an item as long as its kind allows, but no longer than it is good here.
    pub fn of(kept: Kept, life: &Life) -> Freshness {
        let left_ms = kept.left_ms.map_or(u64::MAX, |ms| ms.saturating_sub(life.stale_ms));
        let expires_ms = kept.left_ms.map_or(0, |ms| life.now_ms.saturating_add(ms));
        let since_read_ms = life.ttl_ms.saturating_add(life.stale_ms).saturating_add(life.load_ms);
        let read_ms = expires_ms.saturating_sub(since_read_ms);
        let changed = kept.changed_ms.map(|changed_ms| {
            let at_s = changed_ms / 1000;
            Changed { at_s, exact: read_ms.max(life.settled_ms) >= at_s * 1000 + SECOND_OVER_MS }
        });
        Freshness { max_age_s: life.max_age_ms.min(left_ms) / 1000, changed }
    }

    /// For an answer without a time to live.
    pub const UNKNOWN: Freshness = Freshness { max_age_s: 0, changed: None };

    /// Applies a condition to an answer with this tag, or without any (RFC 9110, 13.2.2). A 304 needs the
    /// exact date that the client was told, not a later one. Rows may be changed back. O(condition).
    pub fn verdict(&self, condition: Condition<'_>, tag: Option<&[u8]>) -> Verdict {
        let wanted = match (condition.matches, condition.unmodified_since_s, self.changed) {
            (Some(tags), ..) => tags.name(tag, true),
            (None, Some(since_s), Some(changed)) => {
                changed.at_s < since_s || changed.at_s == since_s && changed.exact
            }
            _ => true,
        };
        let known = match (condition.none_match, condition.modified_since_s, self.changed) {
            (Some(tags), ..) => tags.name(tag, false),
            (None, Some(since_s), Some(changed)) => changed.exact && changed.at_s == since_s,
            _ => false,
        };
        match (wanted, known) {
            (false, _) => Verdict::Failed,
            (true, true) => Verdict::Unchanged,
            (true, false) => Verdict::Send,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self.max_age_s {
            0 => out.extend_from_slice(b"Cache-Control: no-cache\r\n"),
            max_age_s => {
                out.extend_from_slice(b"Cache-Control: max-age=");
                number(max_age_s, out);
                out.extend_from_slice(b"\r\n");
            }
        }
        if let Some(changed) = self.changed.filter(|changed| changed.exact) {
            out.extend_from_slice(b"Last-Modified: ");
            out.extend_from_slice(&spell(changed.at_s));
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Room for the longest head, without the caller's lines.
const HEAD: usize = 400;

fn number(n: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Writes the first lines of a response.
fn begin(status: u16, framing: Framing, date: &[u8; DATE], out: &mut Vec<u8>) {
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\nDate: ");
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        number(status.into(), out);
        out.push(b' ');
        out.extend_from_slice(reason(status).as_bytes());
        out.extend_from_slice(b"\r\nDate: ");
    }
    out.extend_from_slice(date);
    out.extend_from_slice(match framing {
        Framing { keep: false, .. } => b"\r\nConnection: close\r\n",
        Framing { http11: false, .. } => b"\r\nConnection: keep-alive\r\n",
        _ => b"\r\n",
    });
}

fn line(name: &str, value: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn end(framing: Framing, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"Content-Length: ");
    number(body.len() as u64, out);
    out.extend_from_slice(b"\r\n\r\n");
    if !framing.head {
        out.extend_from_slice(body);
    }
}

/// Writes a whole body with its tag, or 304 or 412 if the condition says so. Returns the status. O(body).
pub fn tagged(
    framing: Framing,
    date: &[u8; DATE],
    freshness: &Freshness,
    condition: Condition<'_>,
    body: &[u8],
    out: &mut Vec<u8>,
) -> u16 {
    let tag = etag::of(body);
    let status = match freshness.verdict(condition, Some(&tag)) {
        Verdict::Send => 200,
        Verdict::Unchanged => 304,
        Verdict::Failed => return failed(framing, date, out),
    };
    out.reserve(HEAD + body.len());
    begin(status, framing, date, out);
    out.extend_from_slice(b"ETag: ");
    out.extend_from_slice(&tag);
    out.extend_from_slice(b"\r\n");
    freshness.write(out);
    if status == 304 {
        out.extend_from_slice(b"\r\n"); // W1
        return status;
    }
    out.extend_from_slice(b"Content-Type: application/json\r\n");
    end(framing, body, out);
    status
}

/// Writes a 412: this is not the state that the client wants. Returns the status.
pub fn failed(framing: Framing, date: &[u8; DATE], out: &mut Vec<u8>) -> u16 {
    problem(412, framing, date, "the item no longer matches If-Match or If-Unmodified-Since", out);
    412
}

/// Writes a 304 for a long body, which has no tag: the client has it. Returns the status.
pub fn unchanged(framing: Framing, date: &[u8; DATE], freshness: &Freshness, out: &mut Vec<u8>) -> u16 {
    begin(304, framing, date, out);
    freshness.write(out);
    out.extend_from_slice(b"\r\n"); // W1
    304
}

/// Writes the head of a body that follows. Without a length the body comes in chunks or, for an HTTP/1.0
/// client, lasts until the connection ends. There is no tag, because the body is not known yet.
pub fn streamed(
    framing: Framing,
    date: &[u8; DATE],
    content_type: &str,
    freshness: &Freshness,
    len: Option<usize>,
    out: &mut Vec<u8>,
) {
    begin(200, framing, date, out);
    freshness.write(out);
    line("Content-Type", content_type, out);
    match len {
        Some(len) => {
            out.extend_from_slice(b"Content-Length: ");
            number(len as u64, out);
            out.extend_from_slice(b"\r\n\r\n");
        }
        None if framing.http11 => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
        None => out.extend_from_slice(b"\r\n"),
    }
}

/// Writes a text that is true only now; caches must not keep it.
pub fn text(
    status: u16,
    framing: Framing,
    date: &[u8; DATE],
    content_type: &str,
    body: &[u8],
    out: &mut Vec<u8>,
) {
    begin(status, framing, date, out);
    line("Content-Type", content_type, out);
    out.extend_from_slice(b"Cache-Control: no-store\r\n");
    end(framing, body, out);
}

/// The body of a page about the server's state, with its troubles, if any.
pub fn state(status: &str, trouble: &[String]) -> Vec<u8> {
    let mut body = format!("{{\"status\":\"{status}\"").into_bytes();
    for (i, text) in trouble.iter().enumerate() {
        body.extend_from_slice(if i == 0 { b",\"trouble\":[\"" } else { b",\"" });
        escape(text, &mut body);
        body.push(b'"');
    }
    body.extend_from_slice(if trouble.is_empty() { b"}" } else { b"]}" });
    body
}

/// The body of a page of facts: names and texts. O(bytes)
pub fn facts(facts: &[(&str, String)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (i, (name, text)) in facts.iter().enumerate() {
        body.extend_from_slice(if i == 0 { b"{\"" } else { b",\"" });
        escape(name, &mut body);
        body.extend_from_slice(b"\":\"");
        escape(text, &mut body);
        body.push(b'"');
    }
    body.push(b'}');
    body
}

/// Lines of all responses that a browser gets of the console and its API: nothing of them is taken for another
/// kind, told to other sites, or opened by their pages.
pub const GUARDED: &str = "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                           Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n";

/// The policy of the console's pages: scripts, styles and data of this server alone, and no text becomes code.
const POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'\r\n";

/// A file that the server holds, as it is and compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    pub content_type: &'static str,
    pub bytes: &'static [u8],
    pub gzip: &'static [u8],
}

/// Writes a stored file, or 304 if the client has it. Returns the status. O(file), some microseconds for its
/// tag.
pub fn file(
    framing: Framing,
    date: &[u8; DATE],
    (stored, takes_gzip): (&Stored, bool),
    condition: Condition<'_>,
    out: &mut Vec<u8>,
) -> u16 {
    let body = if takes_gzip { stored.gzip } else { stored.bytes };
    let tag = etag::of(body);
    let status = match Freshness::UNKNOWN.verdict(condition, Some(&tag)) {
        Verdict::Send => 200,
        Verdict::Unchanged => 304,
        Verdict::Failed => return failed(framing, date, out),
    };
    begin(status, framing, date, out);
    out.extend_from_slice(b"ETag: ");
    out.extend_from_slice(&tag);
    out.extend_from_slice(b"\r\nCache-Control: no-cache\r\nVary: Accept, Accept-Encoding\r\n");
    out.extend_from_slice(GUARDED.as_bytes());
    out.extend_from_slice(POLICY.as_bytes());
    if status == 304 {
        out.extend_from_slice(b"\r\n"); // W1
        return status;
    }
    line("Content-Type", stored.content_type, out);
    if takes_gzip {
        line("Content-Encoding", "gzip", out);
    }
    end(framing, body, out);
    status
}

/// Writes a whole answer of the API. `lines`: further lines of its head, each with its end.
pub fn answer(framing: Framing, date: &[u8; DATE], lines: &str, body: &[u8], out: &mut Vec<u8>) {
    begin(200, framing, date, out);
    line("Content-Type", JSON, out);
    line("Cache-Control", "no-store", out);
    out.extend_from_slice(GUARDED.as_bytes());
    out.extend_from_slice(lines.as_bytes());
    end(framing, body, out);
}

/// Writes the head of an answer of the API whose length is not known: in chunks, or until the connection ends.
pub fn begin_answer(framing: Framing, date: &[u8; DATE], content_type: &str, out: &mut Vec<u8>) {
    begin(200, framing, date, out);
    line("Content-Type", content_type, out);
    line("Cache-Control", "no-store", out);
    out.extend_from_slice(GUARDED.as_bytes());
    out.extend_from_slice(if framing.http11 { b"Transfer-Encoding: chunked\r\n\r\n" } else { b"\r\n" });
}

/// Writes a piece of a body whose length is not known; an empty one is left out.
pub fn piece(framing: Framing, bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    if framing.http11 {
        out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
    }
    out.extend_from_slice(bytes);
    if framing.http11 {
        out.extend_from_slice(b"\r\n");
    }
}

/// Ends a body whose length is not known.
pub fn end_pieces(framing: Framing, out: &mut Vec<u8>) {
    if framing.http11 {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

/// Has a client that waits send its body.
pub fn go_on(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// Writes an error for people and programs (RFC 9457).
pub fn problem(status: u16, framing: Framing, date: &[u8; DATE], detail: &str, out: &mut Vec<u8>) {
    problem_with(status, framing, date, (detail, "GET, HEAD"), out);
}

/// Writes an error of a path that allows these methods.
pub fn problem_with(
    status: u16,
    framing: Framing,
    date: &[u8; DATE],
    (detail, methods): (&str, &str),
    out: &mut Vec<u8>,
) {
    let mut body = Vec::with_capacity(100 + detail.len());
    body.extend_from_slice(b"{\"type\":\"about:blank\",\"title\":\"");
    body.extend_from_slice(reason(status).as_bytes());
    body.extend_from_slice(b"\",\"status\":");
    number(status.into(), &mut body);
    body.extend_from_slice(b",\"detail\":\"");
    escape(detail, &mut body);
    body.extend_from_slice(b"\"}");
    begin(status, framing, date, out);
    line("Content-Type", "application/problem+json", out);
    line("Cache-Control", if status == 404 { "no-cache" } else { "no-store" }, out);
    match status {
        401 => line("WWW-Authenticate", "Bearer realm=\"evenkeel\"", out),
        405 => line("Allow", methods, out),
        429 | 503 | 504 => line("Retry-After", "1", out),
        _ => {}
    }
    end(framing, &body, out);
}

/// Status and text for the error of a command, given without its `-`.
pub fn failure(error: &[u8]) -> (u16, std::borrow::Cow<'_, str>) {
    let code = error.split(|byte| *byte == b' ').next().unwrap_or_default();
    let status = match code {
        b"NOPERM" => 403,
        b"SOURCESLOW" => 504,
        b"SOURCEDOWN" | b"SOURCEBUSY" | b"LOADING" | b"OOM" | b"BUSY" | b"MASTERDOWN" => 503,
        _ => 500,
    };
    let detail = error.get(code.len() + 1..).unwrap_or(error);
    (status, String::from_utf8_lossy(detail))
}

/// The reason phrase of a status.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etag::Tags;

    const KEPT: Framing = Framing { head: false, keep: true, http11: true };
    const ALL: Condition<'_> =
        Condition { matches: None, unmodified_since_s: None, none_match: None, modified_since_s: None };
    /// For items that are good for a minute.
    const LIFE: Life = Life {
        ttl_ms: 60_000,
        stale_ms: 0,
        load_ms: 200,
        max_age_ms: 30_000,
        now_ms: 784_111_777_000,
        settled_ms: 0,
    };

    fn date() -> [u8; DATE] {
        spell(784_111_777)
    }

    fn fresh(left_ms: Option<u64>) -> Freshness {
        Freshness::of(Kept { left_ms, changed_ms: None }, &LIFE)
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_item_comes_with_all_that_caches_need() {
        let text = written(|out| {
            assert_eq!(tagged(KEPT, &date(), &fresh(Some(45_600)), ALL, b"{}", out), 200);
        });
        let tag = String::from_utf8(etag::of(b"{}").to_vec()).unwrap();
        assert_eq!(
            text,
            format!(
                "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nETag: {tag}\r\nCache-Control: max-age=30\r\n\
                 Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            )
        );
        let asked = format!("\"x\", {tag}");
        let asked = Condition { none_match: Some(Tags::new(asked.as_bytes())), ..ALL };
        let text = written(|out| {
            assert_eq!(tagged(KEPT, &date(), &Freshness::UNKNOWN, asked, b"{}", out), 304);
        });
        assert!(
            text.starts_with("HTTP/1.1 304 Not Modified\r\n") && text.ends_with("no-cache\r\n\r\n"),
            "{text}"
        );
    }

    #[test]
    fn a_cache_keeps_nothing_longer_than_it_is_good_here() {
        for (left_ms, max_age_s) in
            [(Some(60_000), 30), (Some(30_000), 30), (Some(29_999), 29), (Some(999), 0), (None, 30)]
        {
            assert_eq!(fresh(left_ms).max_age_s, max_age_s, "{left_ms:?}");
        }
        // An item that is kept only in case its database is down is not good.
        let kept = Kept { left_ms: Some(70_000), changed_ms: None };
        for (stale_ms, max_age_s) in [(50_000, 20), (80_000, 0)] {
            assert_eq!(Freshness::of(kept, &Life { stale_ms, ..LIFE }).max_age_s, max_age_s);
        }
        // Usually caches have to ask.
        assert_eq!(Freshness::of(kept, &Life { max_age_ms: 0, ..LIFE }).max_age_s, 0);
        let text = written(|out| Freshness::of(kept, &Life { max_age_ms: 0, ..LIFE }).write(out));
        assert_eq!(text, "Cache-Control: no-cache\r\n");
    }

    /// The freshness of an item changed at 784_111_770.5 and loaded this many milliseconds after that second
    /// began.
    fn changed(loaded_after_ms: u64, settled_after_ms: u64) -> Freshness {
        let second_ms = 784_111_770_000;
        let life = Life { settled_ms: second_ms + settled_after_ms, stale_ms: 5000, ..LIFE };
        let left_ms = 60_000 + 5000 - (LIFE.now_ms - second_ms - loaded_after_ms);
        Freshness::of(Kept { left_ms: Some(left_ms), changed_ms: Some(second_ms + 500) }, &life)
    }

    fn status(freshness: &Freshness, condition: Condition<'_>) -> u16 {
        tagged(KEPT, &date(), freshness, condition, b"{}", &mut Vec::new())
    }

    /// A client that fetched an item between two changes of one second must not get a 304.
    #[test]
    fn a_date_tells_a_state_only_when_its_second_is_over() {
        for (loaded, settled, told) in
            [(2200, 0, true), (2199, 0, false), (600, 1999, false), (600, 2000, true), (600, 5000, true)]
        {
            let freshness = changed(loaded, settled);
            let text = written(|out| freshness.write(out));
            let line = "\r\nLast-Modified: Sun, 06 Nov 1994 08:49:30 GMT\r\n";
            assert_eq!(text.ends_with(line), told, "{loaded} {settled}: {text}");
            let since = Condition { modified_since_s: Some(784_111_770), ..ALL };
            assert_eq!(status(&freshness, since), if told { 304 } else { 200 });
            let until = Condition { unmodified_since_s: Some(784_111_770), ..ALL };
            assert_eq!(status(&freshness, until), if told { 200 } else { 412 });
        }
    }

    #[test]
    fn what_did_not_change_since_is_not_sent_again() {
        let changed = changed(2200, 0);
        for (since_s, expected) in [(784_111_769, 200), (784_111_770, 304), (784_111_771, 200)] {
            let condition = Condition { modified_since_s: Some(since_s), ..ALL };
            assert_eq!(status(&changed, condition), expected, "{since_s}");
            assert_eq!(status(&fresh(None), condition), 200);
            // A tag counts more than a date.
            assert_eq!(
                status(&changed, Condition { none_match: Some(Tags::new(b"\"x\"")), ..condition }),
                200
            );
        }
    }

    #[test]
    fn what_is_not_as_the_client_wants_it_is_not_sent() {
        let changed = changed(2200, 0);
        let tag = etag::of(b"{}");
        let weak = [b"W/", &tag[..]].concat();
        for (list, expected) in [(&tag[..], 200), (b"*", 200), (b"\"x\"", 412), (&weak, 412), (b"", 412)] {
            let matches = Some(Tags::new(list));
            assert_eq!(status(&changed, Condition { matches, ..ALL }), expected);
            // The wanted state is checked first, then the known one.
            let none_match = Some(Tags::new(b"*"));
            let both = Condition { matches, none_match, ..ALL };
            assert_eq!(status(&changed, both), if expected == 200 { 304 } else { 412 });
        }
        for (since_s, expected) in [(784_111_769, 412), (784_111_770, 200), (784_111_771, 200)] {
            let condition = Condition { unmodified_since_s: Some(since_s), ..ALL };
            assert_eq!(status(&changed, condition), expected, "{since_s}");
            assert_eq!(status(&fresh(None), condition), 200, "nothing is known");
        }
        // A long body has no tag.
        let list = |list| Condition { matches: Some(Tags::new(list)), ..ALL };
        assert_eq!(changed.verdict(list(&tag), None), Verdict::Failed);
        assert_eq!(changed.verdict(list(b"*"), None), Verdict::Send);
    }

    #[test]
    fn head_has_the_head_only_and_old_clients_are_told_whether_to_stay() {
        let framing = Framing { head: true, keep: true, http11: false };
        let text = written(|out| {
            tagged(framing, &date(), &fresh(None), ALL, b"[1]", out);
        });
        assert!(
            text.contains("Connection: keep-alive\r\n") && text.ends_with("Content-Length: 3\r\n\r\n"),
            "{text}"
        );
        let text = written(|out| problem(405, Framing::LAST, &date(), "a \"word\"", out));
        assert!(text.contains("Connection: close\r\n") && text.contains("Allow: GET, HEAD\r\n"), "{text}");
        assert!(text.ends_with("\"status\":405,\"detail\":\"a \\\"word\\\"\"}"), "{text}");
    }

    #[test]
    fn bodies_that_follow_are_framed_as_the_client_understands() {
        let head = |framing, len| written(|out| streamed(framing, &date(), JSON, &fresh(None), len, out));
        assert!(head(KEPT, Some(7)).ends_with("Content-Length: 7\r\n\r\n"));
        assert!(head(KEPT, None).ends_with("Transfer-Encoding: chunked\r\n\r\n"));
        let old = head(Framing { head: false, keep: false, http11: false }, None);
        assert!(
            !old.contains("Length") && !old.contains("chunked") && old.contains("Connection: close"),
            "{old}"
        );
    }

    #[test]
    fn states_tell_what_is_in_trouble() {
        let text = |trouble: &[String]| String::from_utf8(state("ready", trouble)).unwrap();
        assert_eq!(text(&[]), "{\"status\":\"ready\"}");
        let both = ["a \"b\"".to_owned(), "c".to_owned()];
        assert_eq!(text(&both), "{\"status\":\"ready\",\"trouble\":[\"a \\\"b\\\"\",\"c\"]}");
    }

    #[test]
    fn errors_of_commands_have_a_status() {
        for (error, status, detail) in [
            ("SOURCEDOWN no answer", 503, "no answer"),
            ("SOURCESLOW x", 504, "x"),
            ("SOURCEBUSY x", 503, "x"),
            ("ERR odd", 500, "odd"),
            ("ODD", 500, "ODD"),
            ("", 500, ""),
        ] {
            assert_eq!(failure(error.as_bytes()), (status, detail.into()));
        }
    }
}
