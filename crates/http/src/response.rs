//! Responses as bytes, appended to what is to be sent.
//!
//! - W1: a response to HEAD, and one with status 304, has no body, whatever its head says of one.
//! - W2: each response says when the connection ends with it.

use crate::Condition;
use crate::date::{LEN as DATE, spell};
use crate::etag;
use crate::reply::{Kept, escape};

/// What a request says about its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// HEAD: no body.
    pub head: bool,
    /// Another request may follow.
    pub keep: bool,
    pub http11: bool,
}

impl Framing {
    /// Of a response after which nothing follows.
    pub const LAST: Framing = Framing { head: false, keep: false, http11: true };

    pub fn of(request: &crate::Request<'_>) -> Framing {
        Framing { head: request.method == crate::Method::Head, keep: request.keep, http11: request.http11 }
    }
}

pub const JSON: &str = "application/json";
pub const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What caches may do with an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freshness {
    /// Seconds it was good for when it was loaded; None: caches have to ask each time.
    max_age_s: Option<u64>,
    /// Seconds since then.
    age_s: u64,
    changed_ms: Option<u64>,
}

impl Freshness {
    /// `ttl_ms`: how long items of its kind are good; `stale_ms`: how long they are kept beyond that. A cache takes the age off
    /// the time to live, so that what is left for it is what is left here.
    pub fn of(kept: Kept, ttl_ms: u64, stale_ms: u64) -> Freshness {
        let changed_ms = kept.changed_ms;
        match kept.left_ms {
            Some(left_ms) => {
                let left_ms = left_ms.saturating_sub(stale_ms);
                let (max_age_s, left_s) = (ttl_ms.max(left_ms) / 1000, left_ms / 1000);
                Freshness { max_age_s: Some(max_age_s), age_s: max_age_s - left_s, changed_ms }
            }
            None => Freshness { max_age_s: None, age_s: 0, changed_ms },
        }
    }

    /// Whether a client that has what it had at that moment has this. A time of change that is not known says nothing.
    pub fn is_as_since(&self, modified_since_s: Option<u64>) -> bool {
        let (Some(changed_ms), Some(since_s)) = (self.changed_ms, modified_since_s) else { return false };
        changed_ms / 1000 <= since_s
    }

    /// Of what has no time to live.
    pub const UNKNOWN: Freshness = Freshness { max_age_s: None, age_s: 0, changed_ms: None };

    fn write(&self, out: &mut Vec<u8>) {
        match self.max_age_s {
            Some(max_age_s) => {
                out.extend_from_slice(b"Cache-Control: max-age=");
                number(max_age_s, out);
                out.extend_from_slice(b"\r\nAge: ");
                number(self.age_s, out);
                out.extend_from_slice(b"\r\n");
            }
            None => out.extend_from_slice(b"Cache-Control: no-cache\r\n"),
        }
        if let Some(changed_ms) = self.changed_ms {
            out.extend_from_slice(b"Last-Modified: ");
            out.extend_from_slice(&spell(changed_ms / 1000));
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Room for the longest head without what the caller adds.
const HEAD: usize = 400;

fn number(n: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// The lines every response begins with.
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

/// A body that is there as a whole, with its tag; or 304 if the client has it. Gives the status. Cost: O(body).
pub fn tagged(
    framing: Framing,
    date: &[u8; DATE],
    freshness: &Freshness,
    condition: Condition<'_>,
    body: &[u8],
    out: &mut Vec<u8>,
) -> u16 {
    let tag = etag::of(body);
    let has = match condition.none_match {
        Some(list) => etag::matches(list, &tag),
        None => freshness.is_as_since(condition.modified_since_s),
    };
    let status = if has { 304 } else { 200 };
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

/// The client has what is long: its time of change says so. Gives the status.
pub fn unchanged(framing: Framing, date: &[u8; DATE], freshness: &Freshness, out: &mut Vec<u8>) -> u16 {
    begin(304, framing, date, out);
    freshness.write(out);
    out.extend_from_slice(b"\r\n"); // W1
    304
}

/// The head of a body that follows; without a length it comes in chunks, or, to a client that does not know them, until the
/// connection ends. Without tag: the body is not known yet.
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

/// A text that is of this moment only.
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

/// What went wrong, for people and programs (RFC 9457).
pub fn problem(status: u16, framing: Framing, date: &[u8; DATE], detail: &str, out: &mut Vec<u8>) {
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
        405 => line("Allow", "GET, HEAD", out),
        503 | 504 => line("Retry-After", "1", out),
        _ => {}
    }
    end(framing, &body, out);
}

/// Status and text for an error of a command (without its `-`).
pub fn failure(error: &[u8]) -> (u16, std::borrow::Cow<'_, str>) {
    let code = error.split(|byte| *byte == b' ').next().unwrap_or_default();
    let status = match code {
        b"SOURCESLOW" => 504,
        b"SOURCEDOWN" | b"SOURCEBUSY" | b"LOADING" | b"OOM" | b"BUSY" | b"MASTERDOWN" => 503,
        _ => 500,
    };
    let detail = error.get(code.len() + 1..).unwrap_or(error);
    (status, String::from_utf8_lossy(detail))
}

/// The words of a status.
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
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
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

    const KEPT: Framing = Framing { head: false, keep: true, http11: true };
    const ALL: Condition<'_> = Condition { none_match: None, modified_since_s: None };

    fn date() -> [u8; DATE] {
        spell(784_111_777)
    }

    fn fresh(left_ms: Option<u64>) -> Freshness {
        Freshness::of(Kept { left_ms, changed_ms: None }, 60_000, 0)
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
                "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nETag: {tag}\r\nCache-Control: max-age=60\r\n\
                 Age: 15\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            )
        );
        let asked = format!("\"x\", {tag}");
        let asked = Condition { none_match: Some(asked.as_bytes()), ..ALL };
        let text = written(|out| {
            assert_eq!(tagged(KEPT, &date(), &fresh(None), asked, b"{}", out), 304);
        });
        assert!(
            text.starts_with("HTTP/1.1 304 Not Modified\r\n") && text.ends_with("no-cache\r\n\r\n"),
            "{text}"
        );
    }

    #[test]
    fn what_is_left_for_a_cache_is_what_is_left_here() {
        for (left_ms, max_age, age) in [(60_000, 60, 0), (59_999, 60, 1), (0, 60, 60), (90_500, 90, 0)] {
            let freshness = fresh(Some(left_ms));
            assert_eq!((freshness.max_age_s, freshness.age_s), (Some(max_age), age));
        }
        // What is only kept in case its database is down is not fresh.
        let kept = Kept { left_ms: Some(70_000), changed_ms: None };
        assert_eq!(Freshness::of(kept, 60_000, 30_000).age_s, 20);
        assert_eq!(Freshness::of(kept, 60_000, 80_000).age_s, 60);
        let changed = Freshness::of(Kept { left_ms: None, changed_ms: Some(784_111_777_500) }, 0, 0);
        let text = written(|out| changed.write(out));
        assert!(text.ends_with("\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), "{text}");
    }

    #[test]
    fn what_did_not_change_since_is_not_sent_again() {
        let changed = Freshness::of(Kept { left_ms: None, changed_ms: Some(784_111_777_500) }, 0, 0);
        let status = |freshness: &Freshness, condition: Condition<'_>| {
            tagged(KEPT, &date(), freshness, condition, b"{}", &mut Vec::new())
        };
        for (since_s, expected) in [(784_111_776, 200), (784_111_777, 304), (784_111_778, 304)] {
            let condition = Condition { modified_since_s: Some(since_s), ..ALL };
            assert_eq!(status(&changed, condition), expected, "{since_s}");
            assert_eq!(status(&fresh(None), condition), 200);
            // A tag says more than a time.
            assert_eq!(status(&changed, Condition { none_match: Some(b"\"x\""), ..condition }), 200);
        }
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
