//! The culprits that a server names of its own accord (EVENKEEL WAITS).

use crate::client::Client;
use crate::report;
use crate::target::{BYSTANDER, Target};
use dial::Frame;
use std::io;

/// Waits that are looked at.
const LATEST: &[u8] = b"128";

/// The longest wait of a bystander since a story began, by the server's own account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The client that was waited for; empty: the server names none.
    pub name: String,
    pub command: String,
    /// The cause in the server's words: `loop`, `os` …
    pub cause: String,
    /// At most so many microseconds.
    pub us: u64,
}

impl Culprit {
    /// The wait, as part of a sentence.
    pub fn text(&self) -> String {
        let time = report::time(self.us as f64 * 1e3);
        if self.cause == "os" {
            return format!(
                "a GET waited at most {time} for the processor, which something else on its machine had"
            );
        }
        let behind = match self.name.as_str() {
            "" => self.command.clone(),
            name => format!("{name} ({})", self.command),
        };
        format!("a GET waited at most {time} for {}, because of {behind}", self.cause)
    }
}

/// Forgets the waits so far. Nothing happens at servers that do not tell them.
pub fn forget(target: &Target) -> io::Result<()> {
    if target.tells_waits {
        Client::connect(&target.endpoint)?.call(&[b"EVENKEEL", b"WAITS", b"RESET"])?;
    }
    Ok(())
}

/// The longest wait of a bystander among the latest. None: there was none, or the server does not tell.
pub fn longest(target: &Target) -> io::Result<Option<Culprit>> {
    if !target.tells_waits {
        return Ok(None);
    }
    let reply = Client::connect(&target.endpoint)?.call(&[b"EVENKEEL", b"WAITS", LATEST])?;
    Ok(longest_in(&reply))
}

fn longest_in(reply: &Frame) -> Option<Culprit> {
    let Frame::Array(waits) = field(reply, "latest")? else { return None };
    let of_bystander =
        waits.iter().filter(|wait| field(wait, "name").is_some_and(|name| name.lossy() == BYSTANDER));
    let found = of_bystander.filter_map(|wait| {
        let behind = field(wait, "behind");
        let text = |name: &str| {
            behind
                .and_then(|behind| field(behind, name))
                .map(|text| dial::shown(text.lossy()))
                .unwrap_or_default()
        };
        let cause = dial::shown(field(wait, "for")?.lossy());
        Some(Culprit { name: text("name"), command: text("command"), cause, us: whole(field(wait, "us")?)? })
    });
    found.max_by_key(|culprit| culprit.us)
}

fn whole(frame: &Frame) -> Option<u64> {
    match frame {
        Frame::Int(n) => u64::try_from(*n).ok(),
        other => other.lossy().parse().ok(),
    }
}

/// A value of a map, which RESP2 shows as a list of names and values.
fn field<'a>(frame: &'a Frame, name: &str) -> Option<&'a Frame> {
    match frame {
        Frame::Array(words) => {
            words.chunks_exact(2).find(|pair| pair[0].lossy() == name).map(|pair| &pair[1])
        }
        Frame::Map(pairs) => pairs.iter().find(|(key, _)| key.lossy() == name).map(|(_, value)| value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[Frame]) -> Frame {
        Frame::Array(words.to_vec())
    }

    fn bulk(text: &str) -> Frame {
        Frame::Bulk(text.as_bytes().to_vec())
    }

    #[test]
    fn the_longest_wait_of_a_bystander_names_its_culprit() {
        let wait = |waiter: &str, us: i64, behind: &str| {
            let behind = list(&[bulk("name"), bulk(behind), bulk("command"), bulk("KEYS *")]);
            list(&[
                bulk("name"),
                bulk(waiter),
                bulk("for"),
                bulk("loop"),
                bulk("us"),
                Frame::Int(us),
                bulk("behind"),
                behind,
            ])
        };
        let latest = list(&[wait("else", 900, "x"), wait(BYSTANDER, 300, "a"), wait(BYSTANDER, 700, "b")]);
        let found = longest_in(&list(&[bulk("causes"), list(&[]), bulk("latest"), latest])).unwrap();
        assert_eq!((found.name.as_str(), found.command.as_str(), found.us), ("b", "KEYS *", 700));
        assert_eq!(found.text(), "a GET waited at most 700 µs for loop, because of b (KEYS *)");
        assert_eq!(longest_in(&Frame::Int(3)), None);
        assert_eq!(longest_in(&list(&[bulk("latest"), list(&[])])), None);
    }
}
