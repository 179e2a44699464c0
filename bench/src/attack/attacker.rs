//! The attacker's connection: sends commands, and discards replies as cheaply as possible.
//!
//! On a small machine the attacker's own work takes cores from the server under test, so parsing is kept to a
//! minimum. [`FrameCount`] finds the end of a reply without keeping anything. A reply that is the same each
//! time is scanned once. From then on its first bytes are compared and the rest is dropped inside the kernel
//! ([`sys::skip`]).
//!
//! Sending and receiving go on together, so that a server which stops reading from a client with unread
//! replies does not lock up with it. No call moves more than [`PIECE`] bytes. Over loopback the sender's call
//! also does the receiver's part of TCP. Megabytes in one call keep a core from server and bystander for more
//! than a millisecond. A client on another machine cannot do that.

use crate::server::Server;
use crate::sys;
use crate::wire;
use dial::{Frame, FrameCount};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Silence after which a server is given up.
pub const SILENCE: Duration = Duration::from_secs(400);
/// Bytes sent or dropped by one call.
const PIECE: usize = 128 << 10;
/// Bytes at the start of a known reply that are compared.
const HEAD: usize = 16;

pub struct Attacker {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// The form of the last reply to a command.
#[derive(Default)]
pub struct Shape {
    head: Vec<u8>,
    length: usize,
}

impl Attacker {
    pub fn connect(server: &Server) -> io::Result<Attacker> {
        let stream = TcpStream::connect(("127.0.0.1", server.port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Attacker { stream, buffer: vec![0; PIECE] })
    }

    /// Sends `commands`, skips `replies` replies, and returns the time taken. Errors: the connection's,
    /// silence, an error reply with its text.
    pub fn exchange(&mut self, commands: &[u8], replies: u64) -> io::Result<Duration> {
        self.scan(commands, replies).map(|(took, _)| took)
    }

    /// Sends one command written as parts.
    pub fn call(&mut self, parts: &[&[u8]]) -> io::Result<Duration> {
        let mut command = Vec::new();
        wire::command(&mut command, parts);
        self.exchange(&command, 1)
    }

    /// Sends one command written as words separated by spaces.
    pub fn words(&mut self, line: &str) -> io::Result<Duration> {
        self.call(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Sends `commands`, each of which is answered with an error that begins with `text`.
    pub fn refused(&mut self, commands: &[u8], replies: u64, text: &str) -> io::Result<Duration> {
        let (took, _, scanner) = self.receive(commands, replies)?;
        match scanner.errors() {
            (n, first) if n == replies && first.starts_with(text) => Ok(took),
            (n, first) => Err(io::Error::other(format!("{n} of {replies} are errors: {first}"))),
        }
    }

    /// [`Attacker::exchange`] of a command whose reply always has the same length.
    pub fn exchange_known(&mut self, command: &[u8], shape: &mut Shape) -> io::Result<Duration> {
        if shape.length == 0 {
            let (took, known) = self.scan(command, 1)?;
            *shape = known;
            return Ok(took);
        }
        let start = Instant::now();
        let mut out = command;
        let mut left = shape.length;
        let mut seen = 0;
        let mut heard = start;
        while !out.is_empty() || left > 0 {
            if seen < shape.head.len() {
                // The first bytes are read and compared, so that an error is not taken for the reply.
                let end = shape.head.len() - seen;
                match quiet(self.stream.read(&mut self.buffer[..end]))? {
                    Some(n) if self.buffer[..n] == shape.head[seen..seen + n] => {
                        (seen, left, heard) = (seen + n, left - n, Instant::now());
                        continue;
                    }
                    Some(n) => {
                        let first = self.buffer[..n].to_vec();
                        return Err(self.unexpected(first, heard)?);
                    }
                    None => {}
                }
            } else if let Some(n) = quiet(sys::skip(&self.stream, left.min(PIECE)))? {
                (left, heard) = (left - n, Instant::now());
                continue;
            }
            self.push_or_wait(&mut out, heard)?;
        }
        Ok(start.elapsed())
    }

    fn scan(&mut self, commands: &[u8], replies: u64) -> io::Result<(Duration, Shape)> {
        let (took, shape, scanner) = self.receive(commands, replies)?;
        match scanner.errors() {
            (0, _) if scanner.at_rest() => Ok((took, shape)),
            (0, _) => Err(io::Error::other(format!("more than {replies} replies"))),
            (_, text) => Err(io::Error::other(text)),
        }
    }

    /// Sends `commands` and reads `replies` replies of any kind. Errors: more replies than that, too.
    fn receive(&mut self, commands: &[u8], replies: u64) -> io::Result<(Duration, Shape, FrameCount)> {
        let start = Instant::now();
        let mut scanner = FrameCount::default();
        let mut shape = Shape::default();
        let mut out = commands;
        let mut complete = 0;
        let mut heard = start;
        while !out.is_empty() || complete < replies {
            if let Some(n) = quiet(self.stream.read(&mut self.buffer))? {
                let bytes = &self.buffer[..n];
                let room = HEAD - shape.head.len();
                shape.head.extend_from_slice(&bytes[..n.min(room)]);
                shape.length += n;
                complete += scanner.feed(bytes);
                heard = Instant::now();
                continue;
            }
            self.push_or_wait(&mut out, heard)?;
        }
        match (complete == replies, scanner.errors()) {
            (true, _) => Ok((start.elapsed(), shape, scanner)),
            (false, (0, _)) => Err(io::Error::other(format!("{complete} replies to {replies} commands"))),
            (false, (_, text)) => Err(io::Error::other(text)),
        }
    }

    /// The error for a reply other than the known one. An error reply gives its text and is read to its end,
    /// so that the connection stays usable.
    fn unexpected(&mut self, mut text: Vec<u8>, heard: Instant) -> io::Result<io::Error> {
        if text.first() != Some(&b'-') {
            let text = String::from_utf8_lossy(&text);
            return Ok(io::Error::other(format!("another reply than before, it begins with {text:?}")));
        }
        while !text.ends_with(b"\n") {
            match quiet(self.stream.read(&mut self.buffer[..1]))? {
                Some(_) => text.push(self.buffer[0]),
                None => self.push_or_wait(&mut &[][..], heard)?,
            }
        }
        Ok(io::Error::other(String::from_utf8_lossy(&text[1..]).trim_end().to_string()))
    }

    /// Writes as much as the socket takes, then waits for the next event.
    fn push_or_wait(&mut self, out: &mut &[u8], heard: Instant) -> io::Result<()> {
        if !out.is_empty() {
            match self.stream.write(&out[..out.len().min(PIECE)]) {
                Ok(n) => *out = &out[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        sys::wait_ready(&self.stream, !out.is_empty(), Duration::from_secs(1))?;
        if heard.elapsed() > SILENCE {
            let seconds = SILENCE.as_secs();
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {seconds} s")));
        }
        Ok(())
    }
}

/// `None` where there was nothing to read yet.
fn quiet(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        Ok(n) => Ok(Some(n)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A value as lines of text, for an appendix.
pub fn render(value: &Frame, depth: usize, out: &mut String) {
    let margin = "  ".repeat(depth);
    match value {
        Frame::Array(values) => {
            let flat = values.iter().all(|value| !matches!(value, Frame::Array(_)));
            if flat {
                let words: Vec<String> = values.iter().map(word).collect();
                out.push_str(&format!("{margin}{}\n", words.join(" ")));
            } else {
                values.iter().for_each(|value| render(value, depth + 1, out));
            }
        }
        other => out.push_str(&format!("{margin}{}\n", word(other))),
    }
}

fn word(value: &Frame) -> String {
    match value {
        Frame::Int(n) => n.to_string(),
        Frame::Null | Frame::NullArray => "(nil)".to_string(),
        other => other.lossy(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_replies_become_lines() {
        let pair = |word: &str, n| Frame::Array(vec![Frame::Bulk(word.into()), Frame::Int(n)]);
        let mut out = String::new();
        render(&Frame::Array(vec![pair("KEYS", 3), pair("EVAL", 0)]), 0, &mut out);
        assert_eq!(out, "  KEYS 3\n  EVAL 0\n");
    }
}
