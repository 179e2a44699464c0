//! The paths of the console's API, and the commands behind them.
//!
//! ```text
//! /api/v1/history?from=0&to=60000    EVENKEEL HISTORY 0 60000        the reply as JSON
//! /api/v1/commands                   a list of commands, each by its own right
//! /api/v1/stream                     EVENKEEL NOW, and NOW SINCE, each second
//! ```

use acl::User;
use command::{Command, registry};
use http::target::{Complaint, parameter};
use resp::OwnedArgs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The begin of all paths of the API.
pub const BEGIN: &[u8] = b"/api/v1/";
/// Most streams at once.
pub const STREAMS_MAX: usize = 64;
/// Most bytes of a parameter.
const PARAMETER_MAX: usize = 1024;

/// A path of the API.
#[derive(Clone, Copy)]
pub enum Path {
    /// GET: who is it? POST: a session begins.
    Login,
    Logout,
    /// POST: the session may write for a while, or no longer.
    Writes,
    Commands,
    Stream,
    Show(&'static View),
}

/// A command whose reply a path shows.
pub struct View {
    path: &'static str,
    /// The subcommand of EVENKEEL.
    word: &'static str,
    /// Parameters that become words, in this order.
    plain: &'static [&'static str],
    /// Parameters whose name and value become words.
    named: &'static [&'static str],
}

const fn view(
    path: &'static str,
    word: &'static str,
    plain: &'static [&'static str],
    named: &'static [&'static str],
) -> View {
    View { path, word, plain, named }
}

static VIEWS: [View; 5] = [
    view("now", "NOW", &[], &[]),
    view("history", "HISTORY", &["from", "to", "columns"], &[]),
    view("flows", "FLOWS", &["from", "to"], &[]),
    view("records", "RECORDS", &["from", "to"], &["for", "waiter", "culprit", "min", "count", "skip"]),
    view("incidents", "INCIDENTS", &["from", "to"], &[]),
];

impl Path {
    /// The meaning of a path behind [`BEGIN`].
    pub fn of(rest: &[u8]) -> Option<Path> {
        Some(match rest {
            b"login" => Path::Login,
            b"logout" => Path::Logout,
            b"writes" => Path::Writes,
            b"commands" => Path::Commands,
            b"stream" => Path::Stream,
            rest => Path::Show(VIEWS.iter().find(|view| view.path.as_bytes() == rest)?),
        })
    }

    /// The methods that it takes.
    pub fn methods(self) -> &'static str {
        match self {
            Path::Login => "GET, HEAD, POST",
            Path::Logout | Path::Writes | Path::Commands => "POST",
            Path::Stream => "GET",
            Path::Show(_) => "GET, HEAD",
        }
    }
}

/// A command whose row is known, so that it runs also if it was renamed.
pub struct Call {
    pub row: &'static Command,
    pub words: OwnedArgs,
}

impl Call {
    /// The command that a stream repeats. None: this server does not have it.
    pub fn of_stream() -> Option<Call> {
        VIEWS[0].call(None).ok().flatten()
    }

    /// The same command, for what happened since a time.
    pub fn of_news(since_ms: u64) -> Option<Call> {
        let mut call = Call::of_stream()?;
        call.words.push(b"SINCE");
        call.words.push(since_ms.to_string().as_bytes());
        Some(call)
    }
}

impl View {
    /// The command of a request. None: this server does not have it. Errors: a parameter has a bad escape, or
    /// is too long.
    pub fn call(&self, query: Option<&[u8]>) -> Result<Option<Call>, Complaint> {
        let evenkeel = registry::find_own(b"evenkeel");
        let Some(row) = evenkeel.and_then(|row| registry::find_sub(row, self.word.as_bytes())) else {
            return Ok(None);
        };
        let mut words = OwnedArgs::from_slices(&[b"EVENKEEL", self.word.as_bytes()]);
        let (query, mut value) = (query.unwrap_or_default(), Vec::new());
        let found = |name: &str, value: &mut Vec<u8>| {
            let is_there = parameter(query, name, value)?;
            if value.len() > PARAMETER_MAX { Err("a parameter is too long") } else { Ok(is_there) }
        };
        for name in self.plain {
            if !found(name, &mut value)? {
                break;
            }
            words.push(&value);
        }
        for name in self.named {
            if found(name, &mut value)? {
                words.push(name.as_bytes());
                words.push(&value);
            }
        }
        Ok(Some(Call { row, words }))
    }
}

/// An event's name and data.
pub type Event<'a> = (&'a str, &'a [u8]);

/// The number at the begin of the reply to [`Call::of_news`], and the events in it: their names and data. Texts in
/// it have no line ends. O(json)
pub fn news(json: &[u8]) -> Option<(u64, Vec<Event<'_>>)> {
    let rest = json.strip_prefix(b"{\"next\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let next = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let (mut depth, mut in_text, mut escaped, mut from) = (0, false, false, 0);
    let (mut text, mut name, mut events) = (&rest[..0], "", Vec::new());
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => {
                in_text = !in_text;
                match in_text {
                    true if depth == 0 => from = at + 1,
                    false if depth == 0 => text = &rest[from..at],
                    _ => {}
                }
            }
            _ if in_text => {}
            b'[' | b'{' => {
                match depth {
                    0 => name = std::str::from_utf8(text).ok()?,
                    1 => from = at,
                    _ => {}
                }
                depth += 1;
            }
            b']' | b'}' => {
                depth -= 1;
                if depth == 1 {
                    events.push((name, &rest[from..=at]));
                }
            }
            _ => {}
        }
    }
    Some((next, events))
}

/// Counts streams.
#[derive(Default)]
pub struct Streams(Arc<AtomicUsize>);

/// The place of a stream among those allowed; it is free again on drop.
pub struct Place(Arc<AtomicUsize>);

impl Streams {
    /// Takes a place. None: all are taken.
    pub fn take(&self) -> Option<Place> {
        let place = Place(self.0.clone());
        (self.0.fetch_add(1, Ordering::AcqRel) < STREAMS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The answer to who it is. `by`: cookie, token or nothing.
pub fn describe(user: &User, by: &str, writes: &str, until_ms: u64, databases: usize) -> Vec<u8> {
    let mut body = b"{\"user\":".to_vec();
    http::json::put_string(&String::from_utf8_lossy(user.name()), &mut body);
    let rest = format!(
        ",\"by\":\"{by}\",\"writes\":\"{writes}\",\"writes_until_ms\":{until_ms},\"databases\":{databases},\"version\":\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    body.extend_from_slice(rest.as_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        for (path, method) in [("login", "POST"), ("commands", "POST"), ("stream", "GET"), ("history", "GET")]
        {
            assert!(Path::of(path.as_bytes()).unwrap().methods().contains(method), "{path}");
        }
        for path in ["", "now/", "Now", "items", "login?"] {
            assert!(Path::of(path.as_bytes()).is_none(), "{path}");
        }
    }

    #[test]
    fn parameters_become_words() {
        // A row that is there whatever else the server can do.
        let waits = view("waits", "WHY", &["from", "to"], &["count"]);
        let words = |query: &str| -> Result<Vec<String>, Complaint> {
            let call = waits.call(Some(query.as_bytes()))?.unwrap();
            Ok(call
                .words
                .args()
                .iter()
                .skip(2)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect())
        };
        let list = |words: &[&str]| Ok(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words("to=2&from=%31&count=3&x=y"), list(&["1", "2", "count", "3"]));
        assert_eq!(words("to=2&count=a+b"), list(&["count", "a b"]));
        assert!(words("from=%g1").is_err() && words(&format!("from={}", "1".repeat(2000))).is_err());
        assert!(view("x", "NO-SUCH", &[], &[]).call(None).unwrap().is_none());
    }

    #[test]
    fn events_are_taken_out_of_a_reply() {
        let json = br#"{"next":17000,"wait":[{"id":1,"w":["a]","\"}"]},{"id":2}],"incident":[],"mark":[{"t":"x{"}]}"#;
        let (next, events) = news(json).unwrap();
        let events: Vec<_> =
            events.iter().map(|(name, json)| (*name, std::str::from_utf8(json).unwrap())).collect();
        let expected =
            [("wait", r#"{"id":1,"w":["a]","\"}"]}"#), ("wait", r#"{"id":2}"#), ("mark", r#"{"t":"x{"}"#)];
        assert_eq!((next, &events[..]), (17000, &expected[..]));
        assert_eq!(news(br#"{"next":5,"wait":[],"incident":[],"mark":[]}"#), Some((5, Vec::new())));
        assert!(news(b"[]").is_none() && news(b"{\"next\":x}").is_none());
    }

    #[test]
    fn places_of_streams_come_back() {
        let streams = Streams::default();
        let taken: Vec<_> = (0..STREAMS_MAX).map(|_| streams.take().unwrap()).collect();
        assert!(streams.take().is_none() && streams.take().is_none());
        drop(taken);
        assert!(streams.take().is_some());
    }
}
