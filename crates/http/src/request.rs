//! Parses bytes into requests.
//!
//! - R1: a head ends with an empty line, and every line with CR LF. A lone LF is refused: another reader may
//!   read it differently.
//! - R2: a message has one length. Two lengths, or a length and a transfer coding, are refused (request
//!   smuggling).
//! - R3: after a refusal the rest of the connection's input has no meaning.

use crate::browser::Browser;
use crate::etag::Tags;
use httparse::{Header, Status};
use std::mem::MaybeUninit;

/// Most bytes of a target. A thousand ids of 36 bytes fit.
pub const TARGET_MAX: usize = 40 * 1024;
/// Most bytes of a head, with the request line.
pub const HEAD_MAX: usize = 64 * 1024;
/// Most lines of a head.
pub const HEADERS_MAX: usize = 64;
/// Most bytes of a body. Longer ones are refused.
pub const BODY_MAX: u64 = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Get,
    Head,
    Post,
    Other,
}

impl Method {
    /// Whether it asks for something and changes nothing.
    pub fn reads(self) -> bool {
        matches!(self, Method::Get | Method::Head)
    }
}

/// The condition of a request (RFC 9110, 13.1). The answer is sent only if it differs from the client's copy,
/// or only if it still is what the client names. A date that appears twice is ignored, as a condition that is
/// not understood is not applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Condition<'a> {
    /// If-Match.
    pub matches: Option<Tags<'a>>,
    /// In seconds since 1970; never beside `matches`.
    pub unmodified_since_s: Option<u64>,
    /// If-None-Match.
    pub none_match: Option<Tags<'a>>,
    /// In seconds since 1970; never beside `none_match`.
    pub modified_since_s: Option<u64>,
}

/// A condition that outlives its request.
#[derive(Default)]
pub struct KeptCondition {
    matches: Option<Box<[u8]>>,
    unmodified_since_s: Option<u64>,
    none_match: Option<Box<[u8]>>,
    modified_since_s: Option<u64>,
}

impl Condition<'_> {
    /// Copies the condition. O(n).
    pub fn keep(&self) -> KeptCondition {
        KeptCondition {
            matches: self.matches.map(|tags| tags.joined()),
            unmodified_since_s: self.unmodified_since_s,
            none_match: self.none_match.map(|tags| tags.joined()),
            modified_since_s: self.modified_since_s,
        }
    }
}

impl KeptCondition {
    pub fn get(&self) -> Condition<'_> {
        Condition {
            matches: self.matches.as_deref().map(Tags::new),
            unmodified_since_s: self.unmodified_since_s,
            none_match: self.none_match.as_deref().map(Tags::new),
            modified_since_s: self.modified_since_s,
        }
    }
}

/// The parts of a request's head that matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    pub method: Method,
    /// The method as the client spelled it.
    pub method_name: &'a str,
    /// The target from its first `/` on, still escaped, without the query.
    pub path: &'a [u8],
    /// The part behind the `?`.
    pub query: Option<&'a [u8]>,
    /// HTTP/1.1, otherwise 1.0.
    pub http11: bool,
    /// Whether the client may send another request.
    pub keep: bool,
    pub condition: Condition<'a>,
    pub authorization: Option<&'a [u8]>,
    /// The Host header.
    pub host: Option<&'a [u8]>,
    pub browser: Browser<'a>,
    /// Bytes of the body, to be dropped or taken.
    pub body: u64,
    /// The client waits before it sends its body. It gets the answer at once, and the connection ends; or it
    /// is told to go on ([`Request::awaits`]).
    pub expects: bool,
    /// Bytes of the body as announced, and whether the connection is kept if all of it is taken.
    awaited: (u64, bool),
}

impl Request<'_> {
    /// The request as it is once its client was told to go on with the body.
    pub fn awaits(self) -> Self {
        let (body, keep) = self.awaited;
        Request { body, keep, expects: false, ..self }
    }
}

/// Why the input is no request. The connection ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub status: u16,
    pub detail: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub enum Parsed<'a> {
    /// A request, and the length of its head in bytes.
    Request(Request<'a>, usize),
    /// The head is not complete.
    More,
    Refused(Refusal),
}

const fn refused(status: u16, detail: &'static str) -> Refusal {
    Refusal { status, detail }
}

/// Parses the head at the start of `buf`. `looked`: how many bytes were already searched for the end of the
/// head. Keep it from call to call; set it to 0 for a new head.
///
/// Cost: O(bytes added since the last call), and O(head) once.
pub fn parse<'a>(buf: &'a [u8], looked: &mut usize) -> Parsed<'a> {
    match buf.first() {
        None => return Parsed::More,
        // TLS or another protocol: an empty line may never come.
        Some(first) if !first.is_ascii_alphabetic() => {
            return Parsed::Refused(refused(400, "this is not an HTTP request"));
        }
        _ => {}
    }
    match head_end(buf, *looked) {
        Ok(Some(end)) if end <= HEAD_MAX => {
            *looked = 0;
            read(&buf[..end]).map_or_else(Parsed::Refused, |request| Parsed::Request(request, end))
        }
        Ok(None) if buf.len() <= HEAD_MAX => {
            *looked = buf.len();
            let line = TARGET_MAX + 64;
            if buf.len() > line && memchr::memchr(b'\n', &buf[..line]).is_none() {
                return Parsed::Refused(refused(414, "the target is too long"));
            }
            Parsed::More
        }
        Ok(_) => Parsed::Refused(refused(431, "the head is too long")),
        Err(refusal) => Parsed::Refused(refusal),
    }
}

/// The end of the head, if it is there.
fn head_end(buf: &[u8], looked: usize) -> Result<Option<usize>, Refusal> {
    // A line end may have been seen without the bytes that follow it.
    let from = looked.saturating_sub(2).min(buf.len());
    for at in memchr::memchr_iter(b'\n', &buf[from..]).map(|at| from + at) {
        if at == 0 || buf[at - 1] != b'\r' {
            return Err(refused(400, "a line of the head does not end with CR LF")); // R1
        }
        if buf[at + 1..].starts_with(b"\r\n") {
            return Ok(Some(at + 3));
        }
    }
    Ok(None)
}

/// Parses a complete head.
fn read(head: &[u8]) -> Result<Request<'_>, Refusal> {
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(head, &mut headers) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err(refused(400, "the head is malformed")),
        Err(httparse::Error::TooManyHeaders) => return Err(refused(431, "the head has too many lines")),
        Err(httparse::Error::Version) => {
            return Err(refused(505, "only HTTP/1.1 and HTTP/1.0 are supported"));
        }
        Err(_) => return Err(refused(400, "the head is malformed")),
    }
    let (Some(name), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(refused(400, "the head is malformed"));
    };
    let method = match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => Method::Other,
    };
    if target.len() > TARGET_MAX {
        return Err(refused(414, "the target is too long"));
    }
    let (path, query) = split(target.as_bytes(), method)?;
    let lines = Lines::read(parsed.headers, version == 1)?;
    let body = lines.body()?;
    Ok(Request {
        method,
        method_name: name,
        path,
        query,
        http11: version == 1,
        keep: lines.keep && !(lines.expects && body > 0),
        condition: lines.condition(),
        authorization: lines.authorization,
        host: lines.host,
        browser: lines.browser,
        awaited: (body, lines.keep),
        body: if lines.expects { 0 } else { body },
        expects: lines.expects && body > 0,
    })
}

/// Splits a target in origin or absolute form into path and query. Other forms are allowed only for methods
/// other than GET and HEAD.
fn split(target: &[u8], method: Method) -> Result<(&[u8], Option<&[u8]>), Refusal> {
    if !target.iter().all(|byte| matches!(byte, 0x21..=0x7e) && *byte != b'#') {
        return Err(refused(400, "the target has characters that must be escaped"));
    }
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme)));
    let local = match (target.first(), scheme) {
        (Some(b'/'), _) => target,
        (_, Some(scheme)) => {
            let rest = &target[scheme.len()..];
            match rest.iter().position(|byte| matches!(byte, b'/' | b'?')) {
                Some(0) => return Err(refused(400, "the target has no host")),
                Some(at) => &rest[at..],
                None => b"/",
            }
        }
        _ if method == Method::Other => b"/",
        _ => return Err(refused(400, "the target must start with / or http://")),
    };
    match memchr::memchr(b'?', local) {
        Some(0) => Ok((b"/", Some(&local[1..]))),
        Some(at) => Ok((&local[..at], Some(&local[at + 1..]))),
        None => Ok((local, None)),
    }
}

/// The contents of the lines of a head.
struct Lines<'a> {
    http11: bool,
    hosts: usize,
    host: Option<&'a [u8]>,
    keep: bool,
    length: Option<u64>,
    coding: Option<&'a [u8]>,
    expects: bool,
    if_match: Option<Tags<'a>>,
    if_unmodified_since: Option<Option<&'a [u8]>>,
    if_none_match: Option<Tags<'a>>,
    if_modified_since: Option<Option<&'a [u8]>>,
    authorization: Option<&'a [u8]>,
    browser: Browser<'a>,
}

impl<'a> Lines<'a> {
    fn read(headers: &[Header<'a>], http11: bool) -> Result<Lines<'a>, Refusal> {
        let mut lines = Lines {
            http11,
            hosts: 0,
            host: None,
            keep: http11,
            length: None,
            coding: None,
            expects: false,
            if_match: None,
            if_unmodified_since: None,
            if_none_match: None,
            if_modified_since: None,
            authorization: None,
            browser: Browser::default(),
        };
        let mut closes = false;
        for Header { name, value } in headers {
            // The length is compared first: most lines are none of these.
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
            match name.len() {
                4 if is("host") => {
                    lines.hosts += 1;
                    lines.host = Some(value);
                    if value.iter().any(|byte| matches!(byte, b' ' | b'\t' | b',' | b'/' | b'@')) {
                        return Err(refused(400, "the Host header is malformed"));
                    }
                }
                10 if is("connection") => {
                    closes |= has_token(value, b"close");
                    lines.keep |= has_token(value, b"keep-alive");
                }
                14 if is("content-length") => lines.set_length(value)?,
                17 if is("transfer-encoding") => once(&mut lines.coding, value)?,
                6 if is("expect") => {
                    if !is_only(value, b"100-continue") {
                        return Err(refused(417, "Expect must be 100-continue"));
                    }
                    lines.expects = true;
                }
                8 if is("if-match") => more_tags(&mut lines.if_match, value),
                19 if is("if-unmodified-since") => only(&mut lines.if_unmodified_since, value),
                13 if is("if-none-match") => more_tags(&mut lines.if_none_match, value),
                17 if is("if-modified-since") => only(&mut lines.if_modified_since, value),
                13 if is("authorization") => once(&mut lines.authorization, value)?,
                _ => lines.browser.read(name, value),
            }
        }
        lines.keep &= !closes;
        if lines.hosts > 1 || (http11 && lines.hosts == 0) {
            return Err(refused(400, "the request must have exactly one Host header"));
        }
        Ok(lines)
    }

    fn condition(&self) -> Condition<'a> {
        // Dates are ignored beside tags.
        let since = |line: Option<Option<&[u8]>>, tags: Option<Tags<'_>>| {
            line.flatten().filter(|_| tags.is_none()).and_then(crate::date::parse)
        };
        Condition {
            matches: self.if_match,
            unmodified_since_s: since(self.if_unmodified_since, self.if_match),
            none_match: self.if_none_match,
            modified_since_s: since(self.if_modified_since, self.if_none_match),
        }
    }

    fn set_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
        if !digits || self.length.is_some() {
            return Err(refused(400, "Content-Length is not a number, or appears twice")); // R2
        }
        self.length = Some(value.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')));
        Ok(())
    }

    /// The length of the body.
    fn body(&self) -> Result<u64, Refusal> {
        match (self.coding, self.length.unwrap_or(0)) {
            (None, length) if length > BODY_MAX => Err(refused(413, "the body is too long")),
            (None, length) => Ok(length),
            (Some(_), _) if self.length.is_some() || !self.http11 => {
                Err(refused(400, "a Transfer-Encoding needs HTTP/1.1 and no Content-Length")) // R2
            }
            (Some(coding), _) if is_only(coding, b"chunked") => {
                Err(refused(411, "a body needs a Content-Length"))
            }
            (Some(_), _) => Err(refused(501, "this Transfer-Encoding is not supported")),
        }
    }
}

/// Adds a line of tags.
fn more_tags<'a>(place: &mut Option<Tags<'a>>, value: &'a [u8]) {
    match place {
        Some(tags) => tags.add(value),
        None => *place = Some(Tags::new(value)),
    }
}

/// Takes the value of a line that counts only if it appears once.
fn only<'a>(place: &mut Option<Option<&'a [u8]>>, value: &'a [u8]) {
    *place = Some(if place.is_none() { Some(value) } else { None });
}

/// Takes the value of a line that may appear once.
fn once<'a>(place: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(refused(400, "Authorization or Transfer-Encoding appears twice")),
    }
}

/// Whether a list consists of this token, and perhaps empty places.
fn is_only(list: &[u8], token: &[u8]) -> bool {
    let words = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut words = words.filter(|word| !word.is_empty());
    words.next().is_some_and(|word| word.eq_ignore_ascii_case(token)) && words.next().is_none()
}

/// Whether a list contains this token.
fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|word| word.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Result<Request<'_>, Refusal> {
        match parse(text.as_bytes(), &mut 0) {
            Parsed::Request(request, used) => {
                assert_eq!(used, text.len());
                Ok(request)
            }
            Parsed::Refused(refusal) => Err(refusal),
            Parsed::More => panic!("{text:?} is not whole"),
        }
    }

    fn status(text: &str) -> u16 {
        whole(text).map_or_else(|refusal| refusal.status, |request| panic!("{request:?} was let in"))
    }

    fn lines(lines: &str) -> String {
        format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
    }

    #[test]
    fn a_head_is_read() {
        let request = whole(
            "GET /items/4%202?x=1?2 HTTP/1.1\r\nHost: a:1\r\nIf-None-Match: \"a\", W/\"b\"\r\naUTHORIZATION: Bearer x\r\n\r\n",
        )
        .unwrap();
        assert_eq!((request.method, request.path), (Method::Get, &b"/items/4%202"[..]));
        assert_eq!(request.query, Some(&b"x=1?2"[..]));
        assert_eq!(request.condition.none_match, Some(Tags::new(b"\"a\", W/\"b\"")));
        assert_eq!(request.authorization, Some(&b"Bearer x"[..]));
        assert!(request.http11 && request.keep && request.body == 0 && !request.expects);
    }

    #[test]
    fn conditions_that_are_not_understood_are_not_applied() {
        let since = |text: &str| whole(&lines(text)).unwrap().condition.modified_since_s;
        let date = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        assert_eq!(since(date), Some(784_111_777));
        for lines in
            ["If-Modified-Since: now\r\n", &date.repeat(2), &format!("{date}If-None-Match: \"a\"\r\n")]
        {
            assert_eq!(since(lines), None, "{lines}");
        }
        let date = date.replace("Modified", "Unmodified");
        let until = |text: &str| whole(&lines(text)).unwrap().condition.unmodified_since_s;
        assert_eq!(until(&date), Some(784_111_777));
        for lines in [&date.repeat(2), &format!("If-Match: *\r\n{date}")] {
            assert_eq!(until(lines), None, "{lines}");
        }
    }

    #[test]
    fn tags_may_stand_in_several_lines() {
        let both = lines("If-None-Match: \"a\"\r\nIf-Match: *\r\nIf-None-Match: \"b\"\r\n");
        let condition = whole(&both).unwrap().condition;
        assert_eq!(condition.matches, Some(Tags::new(b"*")));
        for condition in [condition, condition.keep().get()] {
            let tags = condition.none_match.unwrap();
            assert!(tags.name(Some(b"\"a\""), true) && tags.name(Some(b"\"b\""), true));
        }
    }

    #[test]
    fn connections_are_kept_as_asked() {
        let keep = |text: &str| whole(text).unwrap().keep;
        assert!(keep("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!(!keep("GET / HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n"));
        assert!(!keep("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n"));
        assert!(!keep("GET / HTTP/1.0\r\n\r\n"));
        assert!(keep("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    }

    #[test]
    fn targets_come_in_two_forms() {
        let path = |text: &str| {
            let text = format!("GET {text} HTTP/1.1\r\nHost: h\r\n\r\n");
            whole(&text).map(|r| (r.path.to_vec(), r.query.map(<[u8]>::to_vec))).map_err(|r| r.status)
        };
        assert_eq!(path("http://h/a?b"), Ok((b"/a".to_vec(), Some(b"b".to_vec()))));
        assert_eq!(path("HTTP://h"), Ok((b"/".to_vec(), None)));
        assert_eq!(path("https://h?q"), Ok((b"/".to_vec(), Some(b"q".to_vec()))));
        assert_eq!(path("//a"), Ok((b"//a".to_vec(), None)));
        assert_eq!(path("/?"), Ok((b"/".to_vec(), Some(Vec::new()))));
        for bad in ["*", "a", "http:///a", "h:80", "/a#b", "/\u{e9}"] {
            assert_eq!(path(bad), Err(400), "{bad}");
        }
        assert_eq!(whole("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().method, Method::Other);
        assert_eq!(path(&format!("/{}", "a".repeat(TARGET_MAX))), Err(414));
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        assert_eq!(status(&lines("Content-Length: 3\r\nContent-Length: 3\r\n")), 400);
        assert_eq!(status(&lines("Content-Length: 3, 3\r\n")), 400);
        assert_eq!(status(&lines("Content-Length: +3\r\n")), 400);
        assert_eq!(status(&lines("Content-Length: \r\n")), 400);
        assert_eq!(status(&lines("Content-Length: 99999999999999999999\r\n")), 400);
        assert_eq!(status(&lines("Content-Length : 3\r\n")), 400);
        assert_eq!(status(&lines("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")), 400);
        assert_eq!(status(&lines("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")), 400);
        assert_eq!(status("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
        assert_eq!(status(&lines("Transfer-Encoding: chunked\r\n")), 411);
        assert_eq!(status(&lines("Transfer-Encoding: gzip, chunked\r\n")), 501);
        assert_eq!(status(&lines("Host: i\r\n")), 400);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\nHost: h\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: h\n\r\n"), 400);
        assert_eq!(status(&lines(" folded\r\n")), 400);
        assert_eq!(status(&lines("a: b\0c\r\n")), 400);
        assert_eq!(status(&lines("Authorization: a\r\nAuthorization: b\r\n")), 400);
    }

    #[test]
    fn bodies_are_dropped_or_refused() {
        assert_eq!(whole(&lines("Content-Length: 12\r\n")).unwrap().body, 12);
        assert_eq!(status(&lines(&format!("Content-Length: {}\r\n", BODY_MAX + 1))), 413);
        let request = lines("Expect: 100-Continue\r\nContent-Length: 12\r\n");
        let request = whole(&request).unwrap();
        assert!(request.expects && !request.keep && request.body == 0);
        let request = lines("Expect: 100-continue\r\n");
        assert!(whole(&request).unwrap().keep);
        assert_eq!(status(&lines("Expect: a miracle\r\n")), 417);
    }

    #[test]
    fn a_body_may_be_awaited() {
        let text = lines("Expect: 100-continue\r\nContent-Length: 12\r\n");
        let request = whole(&text).unwrap().awaits();
        assert!(!request.expects && request.keep && request.body == 12);
        let text = lines("Content-Length: 3\r\n");
        let request = whole(&text).unwrap();
        assert_eq!(request.awaits(), request);
    }

    #[test]
    fn browsers_tell_of_themselves() {
        let text = lines(
            "Cookie: a=b\r\nOrigin: http://h\r\nSec-Fetch-Site: none\r\nContent-Type: application/json; x\r\n\
                          Accept: text/html\r\nAccept-Encoding: gzip\r\nEvenkeel-Console: 1\r\nCookie: c=d\r\n",
        );
        let request = Request { method: Method::Post, ..whole(&text).unwrap() };
        let browser = request.browser;
        assert_eq!(browser.cookie_of(b"a"), Some(&b"b"[..]));
        assert!(browser.takes_html && browser.takes_gzip && browser.sends_json && browser.is_console);
        assert!(!browser.is_foreign(request.host) && !request.method.reads());
    }

    #[test]
    fn other_protocols_are_refused_at_once() {
        for text in ["\x16\x03\x01\x02", "*1\r\n$4\r\nPING\r\n", "\0", " GET"] {
            assert!(matches!(parse(text.as_bytes(), &mut 0), Parsed::Refused(_)), "{text:?}");
        }
        assert_eq!(status("PRI * HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(status("GET / HTTP/1.1 \r\n\r\n"), 400);
        assert_eq!(status("GET /\r\n\r\n"), 400);
    }

    #[test]
    fn limits_hold_whether_or_not_the_head_ever_ends() {
        let many = "a: b\r\n".repeat(HEADERS_MAX);
        assert_eq!(status(&lines(&many)), 431);
        let long = format!("a: {}\r\n", "x".repeat(2 * HEAD_MAX));
        assert_eq!(status(&lines(&long)), 431);
        let (endless, mut looked) = (lines(&long), 0);
        let end = endless.len() - 2;
        let refused =
            (1..end).step_by(1000).find_map(|n| match parse(&endless.as_bytes()[..n], &mut looked) {
                Parsed::More => None,
                other => Some((n, other)),
            });
        let (n, refusal) = refused.unwrap();
        assert!(n <= HEAD_MAX + 1000);
        assert!(matches!(refusal, Parsed::Refused(Refusal { status: 431, .. })));
        let line = vec![b'A'; TARGET_MAX + 65];
        assert!(matches!(parse(&line, &mut 0), Parsed::Refused(Refusal { status: 414, .. })));
    }

    #[test]
    fn heads_may_come_in_any_pieces() {
        let text = lines("Content-Length: 4\r\nX: y\r\n");
        for at in 0..text.len() {
            let mut looked = 0;
            for n in (0..text.len()).step_by(at + 1) {
                assert_eq!(parse(&text.as_bytes()[..n], &mut looked), Parsed::More);
            }
            assert!(
                matches!(parse(text.as_bytes(), &mut looked), Parsed::Request(_, used) if used == text.len())
            );
            assert_eq!(looked, 0);
        }
    }
}
