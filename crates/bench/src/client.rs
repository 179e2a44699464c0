//! A plain blocking connection, to prepare data and to check answers.

use crate::endpoint::Endpoint;
use crate::wire;
use dial::{Conn, Frame, FrameCount, Patience};
use std::io;
use std::time::{Duration, Instant};

/// Most bytes of one reply, if nothing else is said.
const REPLY_MAX: usize = 64 << 20;

pub struct Client {
    conn: Conn,
    silence: Duration,
}

impl Client {
    /// Connects and logs in. Errors: the connection's; a login that is refused.
    pub fn connect(to: impl AsRef<Endpoint>) -> io::Result<Client> {
        let to = to.as_ref();
        let mut conn = Conn::open(&to.address()?)?;
        conn.set_reply_max(REPLY_MAX);
        for request in to.introduction() {
            if let error @ Frame::Error(_) = conn.call(&request)? {
                return Err(io::Error::other(error.lossy()));
            }
        }
        Ok(Client { conn, silence: to.silence })
    }

    /// Takes replies of so many bytes.
    pub fn allow(&mut self, bytes: usize) {
        self.conn.set_reply_max(bytes.max(REPLY_MAX));
    }

    /// Sends one command. Errors: an error reply, too.
    pub fn call(&mut self, words: &[&[u8]]) -> io::Result<Frame> {
        match self.conn.call(words)? {
            error @ Frame::Error(_) => Err(io::Error::other(error.lossy())),
            frame => Ok(frame),
        }
    }

    /// Sends one encoded command and reads its reply. Errors: an error reply, too.
    pub fn send(&mut self, command: &[u8]) -> io::Result<Frame> {
        self.conn.send(command)?;
        match self.conn.reply()? {
            error @ Frame::Error(_) => Err(io::Error::other(error.lossy())),
            frame => Ok(frame),
        }
    }

    /// Sends encoded commands, whose replies [`Client::read`] gives one by one.
    pub fn write(&mut self, commands: &[u8]) -> io::Result<()> {
        Ok(self.conn.send(commands)?)
    }

    /// Reads the next reply. An error reply is a frame like others.
    pub fn read(&mut self) -> io::Result<Frame> {
        Ok(self.conn.reply()?)
    }

    /// Sends one command written as words separated by spaces.
    pub fn words(&mut self, line: &str) -> io::Result<Frame> {
        self.send(&wire::line(line))
    }

    /// DBSIZE.
    pub fn size(&mut self) -> io::Result<u64> {
        match self.words("DBSIZE")? {
            Frame::Int(n) => Ok(n as u64),
            other => Err(io::Error::other(format!("DBSIZE answered {other:?}"))),
        }
    }

    /// Sends encoded commands, skips `replies` replies, and returns the time taken. Errors: as
    /// [`Client::send`].
    pub fn discard(&mut self, commands: &[u8], replies: u64) -> io::Result<Duration> {
        let start = Instant::now();
        self.conn.send(commands)?;
        let mut count = FrameCount::default();
        let (mut complete, mut patience) = (0, Patience::new(self.silence));
        while complete < replies {
            let n = self.conn.receive(patience.left().ok_or(dial::Error::Late)?)?;
            let more = count.feed(self.conn.received());
            self.conn.consume(n);
            complete += more;
            match more {
                0 => patience.came(n),
                _ => patience = Patience::new(self.silence),
            }
        }
        match count.errors() {
            (0, _) => Ok(start.elapsed()),
            (_, text) => Err(io::Error::other(text)),
        }
    }
}
