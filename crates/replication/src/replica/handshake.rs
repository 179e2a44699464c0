//! The words of a replica to its primary before the stream, without I/O: one line out, one line back.
//!
//! ```text
//! PING ─► [AUTH] ─► REPLCONF listening-port ─► [ip-address] ─► capa ─► version ─► PSYNC ─► Answer
//! ```

use super::Position;

/// The settings that its words depend on.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `masteruser`; empty: the default user.
    pub user: Vec<u8>,
    /// `masterauth`; empty: no AUTH is sent.
    pub password: Vec<u8>,
    /// The port that replicas and sentinels are told.
    pub port: u16,
    /// `replica-announce-ip`; empty: the primary takes the address of the connection.
    pub address: Vec<u8>,
}

/// The next step after a line of the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These bytes are to be sent, and a line is to be read.
    Send(Vec<u8>),
    /// Another line is to be read.
    Wait,
    /// The file of a snapshot follows, and the stream from this offset on.
    Full { id: String, offset: u64 },
    /// The stream goes on where it was. The id, if it is another one.
    Partial { id: Option<String> },
    /// The primary cannot do it now. It is asked again soon.
    Later(String),
    /// The primary refuses. It is asked again, less and less often.
    Refused(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ping,
    Auth,
    Port,
    Address,
    Capabilities,
    Version,
    Sync,
}

/// See the module.
pub struct Handshake {
    settings: Settings,
    from: Option<Position>,
    /// The other server is to lead from now on: it is a replica of this one.
    hands_over: bool,
    stage: Stage,
}

/// The version that is sent alone. Without it Valkey 9 sends a form that lacks times of fields.
const VERSION: &[u8] = b"9.0.0";

impl Handshake {
    /// A handshake that asks for what follows `from`, or for everything.
    pub fn new(settings: Settings, from: Option<Position>) -> Handshake {
        Handshake { settings, from, hands_over: false, stage: Stage::Ping }
    }

    /// The same, which tells a replica to lead first.
    pub fn handing_over(self, hands_over: bool) -> Handshake {
        Handshake { hands_over, ..self }
    }

    /// Whether PSYNC was sent.
    pub fn has_asked(&self) -> bool {
        self.stage == Stage::Sync
    }

    /// The first bytes to send.
    pub fn begin(&self) -> Vec<u8> {
        words(&[b"PING"])
    }

    /// Takes a line without its end, and says what comes next. O(line).
    pub fn hear(&mut self, line: &[u8]) -> Answer {
        if line.is_empty() {
            // A sign of life.
            return Answer::Wait;
        }
        let error = line.strip_prefix(b"-").map(|text| String::from_utf8_lossy(text).into_owned());
        match (self.stage, error) {
            (Stage::Ping, Some(text)) if !wants_login(&text) => refused(text),
            (Stage::Auth, Some(text)) => Answer::Refused(format!("AUTH: {text}")),
            (Stage::Sync, Some(text)) => refused(text),
            (Stage::Sync, None) => self.decide(line),
            // Redis 7 knows no version, and older servers not all of the others: an error means nothing.
            _ => self.next(),
        }
    }

    fn next(&mut self) -> Answer {
        self.stage = match self.stage {
            Stage::Ping if !self.settings.password.is_empty() => Stage::Auth,
            Stage::Ping | Stage::Auth => Stage::Port,
            Stage::Port if !self.settings.address.is_empty() => Stage::Address,
            Stage::Port | Stage::Address => Stage::Capabilities,
            Stage::Capabilities => Stage::Version,
            Stage::Version | Stage::Sync => Stage::Sync,
        };
        Answer::Send(self.says())
    }

    fn says(&self) -> Vec<u8> {
        let Settings { port, address, .. } = &self.settings;
        match self.stage {
            Stage::Ping => self.begin(),
            Stage::Auth => login(&self.settings).unwrap_or_default(),
            Stage::Port => words(&[b"REPLCONF", b"listening-port", port.to_string().as_bytes()]),
            Stage::Address => words(&[b"REPLCONF", b"ip-address", address]),
            Stage::Capabilities => {
                words(&[b"REPLCONF", b"capa", b"eof", b"capa", b"psync2", b"capa", b"evenkeel"])
            }
            Stage::Version => words(&[b"REPLCONF", b"version", VERSION]),
            Stage::Sync => match &self.from {
                None => words(&[b"PSYNC", b"?", b"-1"]),
                Some(from) => {
                    let next = (from.offset + 1).to_string();
                    let all = [b"PSYNC", from.id.as_bytes(), next.as_bytes(), b"FAILOVER"];
                    words(&all[..if self.hands_over { 4 } else { 3 }])
                }
            },
        }
    }

    fn decide(&self, line: &[u8]) -> Answer {
        let line = String::from_utf8_lossy(line);
        let mut said = line.split_ascii_whitespace();
        let strange = || Answer::Refused(format!("PSYNC was answered: {}", line.escape_debug()));
        match (said.next(), said.next(), said.next()) {
            (Some("+FULLRESYNC"), Some(id), Some(offset)) if is_id(id) => match offset.parse() {
                Ok(offset) => Answer::Full { id: id.to_owned(), offset },
                Err(_) => strange(),
            },
            (Some("+CONTINUE"), id, None) if self.from.is_some() && id.is_none_or(is_id) => {
                Answer::Partial { id: id.map(str::to_owned) }
            }
            _ => strange(),
        }
    }
}

/// AUTH, if it is to be sent. O(1)
pub(super) fn login(Settings { user, password, .. }: &Settings) -> Option<Vec<u8>> {
    match (user.is_empty(), password.is_empty()) {
        (_, true) => None,
        (true, _) => Some(words(&[b"AUTH", password])),
        (false, _) => Some(words(&[b"AUTH", user, password])),
    }
}

fn wants_login(text: &str) -> bool {
    ["NOAUTH", "NOPERM", "ERR operation not permitted"].iter().any(|prefix| text.starts_with(prefix))
}

/// An error as an answer to PING or PSYNC.
fn refused(text: String) -> Answer {
    match ["NOMASTERLINK", "LOADING", "MASTERDOWN", "BUSY"].iter().any(|word| text.starts_with(word)) {
        true => Answer::Later(text),
        false => Answer::Refused(text),
    }
}

fn is_id(id: &str) -> bool {
    id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A command in the form of the protocol. O(its bytes).
pub(super) fn words(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789012345678901234567890123456789";
    const OTHER: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

    fn sent(answer: Answer) -> String {
        match answer {
            Answer::Send(bytes) => {
                let text = String::from_utf8(bytes).unwrap();
                let lines = text.split("\r\n").filter(|line| !line.is_empty());
                lines.filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
            }
            other => panic!("{other:?}"),
        }
    }

    fn at_sync(from: Option<Position>) -> Handshake {
        let mut handshake = Handshake::new(Settings { port: 1, ..Settings::default() }, from);
        while !sent(handshake.hear(b"+OK")).starts_with("PSYNC") {}
        handshake
    }

    #[test]
    fn everything_is_said_in_order() {
        let settings = Settings {
            user: b"u".to_vec(),
            password: b"p".to_vec(),
            port: 6380,
            address: b"10.0.0.1".to_vec(),
        };
        let mut handshake = Handshake::new(settings, None);
        assert_eq!(sent(Answer::Send(handshake.begin())), "PING");
        assert_eq!(handshake.hear(b""), Answer::Wait);
        assert_eq!(sent(handshake.hear(b"-NOAUTH Authentication required.")), "AUTH u p");
        assert_eq!(sent(handshake.hear(b"+OK")), "REPLCONF listening-port 6380");
        assert_eq!(sent(handshake.hear(b"+OK")), "REPLCONF ip-address 10.0.0.1");
        assert_eq!(sent(handshake.hear(b"-ERR unknown")), "REPLCONF capa eof capa psync2 capa evenkeel");
        assert_eq!(sent(handshake.hear(b"+OK")), "REPLCONF version 9.0.0");
        assert_eq!(sent(handshake.hear(b"-ERR Unrecognized REPLCONF option: version")), "PSYNC ? -1");
        assert_eq!(handshake.hear(b""), Answer::Wait);
        let full = format!("+FULLRESYNC {ID} 17");
        assert_eq!(handshake.hear(full.as_bytes()), Answer::Full { id: ID.to_owned(), offset: 17 });
    }

    #[test]
    fn a_password_alone_is_the_default_users() {
        let settings = Settings { password: b"p".to_vec(), ..Settings::default() };
        let mut handshake = Handshake::new(settings, None);
        assert_eq!(sent(handshake.hear(b"+PONG")), "AUTH p");
        let refused = handshake.hear(b"-WRONGPASS no");
        assert_eq!(refused, Answer::Refused("AUTH: WRONGPASS no".to_owned()));
    }

    #[test]
    fn the_byte_behind_the_position_is_asked_for() {
        let from = Position { id: ID.to_owned(), offset: 41, db: 3 };
        let mut handshake = Handshake::new(Settings::default(), Some(from.clone()));
        let mut last = String::new();
        while !last.starts_with("PSYNC") {
            last = sent(handshake.hear(b"+OK"));
        }
        assert_eq!(last, format!("PSYNC {ID} 42"));
        assert_eq!(handshake.hear(b"+CONTINUE"), Answer::Partial { id: None });
        let other = format!("+CONTINUE {OTHER}");
        let answer = at_sync(Some(from)).hear(other.as_bytes());
        assert_eq!(answer, Answer::Partial { id: Some(OTHER.to_owned()) });
    }

    #[test]
    fn errors_say_whether_to_ask_again_soon() {
        for text in ["NOMASTERLINK Can't SYNC while not connected with my master", "LOADING still", "BUSY x"]
        {
            let answer = at_sync(None).hear(format!("-{text}").as_bytes());
            assert_eq!(answer, Answer::Later(text.to_owned()));
        }
        let refused = |line: &str| matches!(at_sync(None).hear(line.as_bytes()), Answer::Refused(_));
        for line in ["-ERR no", "+OK", "+FULLRESYNC x 1", "+FULLRESYNC", "+CONTINUE", ":1", "$-1"] {
            assert!(refused(line), "{line}");
        }
        assert!(refused(&format!("+FULLRESYNC {ID} -1")) && refused(&format!("+CONTINUE {ID} {ID}")));
    }
}
