//! One connection.

use crate::input::Input;
use crate::stream::{Stream, connect};
use crate::{Address, Error, Patience, put_request};
use resp::{Frame, FrameEnd, read_frame};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Most bytes of one reply, if nothing else is set.
const REPLY_MAX: usize = 1 << 30;
/// Most bytes of a reply to AUTH and HELLO.
const LOGIN_REPLY_MAX: usize = 64 << 10;
/// Bytes sent of a pipeline before the replies to them are read (D3): less than any socket takes at once.
const PIECE: usize = 32 << 10;
/// Bytes that the protocol adds to a word, about.
const WORD: usize = 16;
/// The shortest limit that a socket can be given.
const LEAST: Duration = Duration::from_micros(1);

/// A connection. It is closed when dropped.
pub struct Conn {
    stream: Box<dyn Stream>,
    pub(crate) input: Input,
    /// How far the reply at the start of the input is.
    end: FrameEnd,
    timeout: Duration,
    reply_max: usize,
    /// The limit that reads of the stream have now.
    read_limit: Option<Duration>,
    /// Bytes have come.
    heard: bool,
}

impl Conn {
    /// Connects, begins TLS if wanted, and logs in. Blocks for `address.connect` for each address of the host,
    /// and then for at most `address.timeout` at each step. Errors: all but [`Error::TooLong`].
    pub fn open(address: &Address) -> Result<Conn, Error> {
        let mut conn = Conn::boxed(connect(address)?, address.timeout)?;
        conn.reply_max = LOGIN_REPLY_MAX;
        conn.log_in(address)?;
        conn.reply_max = REPLY_MAX;
        Ok(conn)
    }

    /// A connection over a stream that is open, without a login. `timeout`: as in [`Address`]. Errors: the
    /// stream takes no limits.
    pub fn over(stream: impl Stream + 'static, timeout: Duration) -> Result<Conn, Error> {
        Conn::boxed(Box::new(stream), timeout)
    }

    fn boxed(stream: Box<dyn Stream>, timeout: Duration) -> Result<Conn, Error> {
        stream.limit_writes(timeout.max(LEAST)).map_err(Error::Connect)?;
        let (input, end) = (Input::default(), FrameEnd::new());
        Ok(Conn { stream, input, end, timeout, reply_max: REPLY_MAX, read_limit: None, heard: false })
    }

    fn log_in(&mut self, address: &Address) -> Result<(), Error> {
        let login = address.login.as_ref().map(|login| (login.user.as_deref(), login.password.as_str()));
        let version = address.protocol.map(|version| version.to_string());
        match (&version, login) {
            (None, None) => Ok(()),
            (None, Some((None, password))) => self.accepted("AUTH", &["AUTH", password]),
            (None, Some((Some(user), password))) => self.accepted("AUTH", &["AUTH", user, password]),
            (Some(version), None) => self.accepted("HELLO", &["HELLO", version]),
            (Some(version), Some((user, password))) => {
                let user = user.unwrap_or("default");
                self.accepted("HELLO", &["HELLO", version, "AUTH", user, password])
            }
        }
    }

    fn accepted(&mut self, command: &'static str, words: &[&str]) -> Result<(), Error> {
        match self.call(words)? {
            Frame::Error(text) => Err(Error::Refused { command, text }),
            _ => Ok(()),
        }
    }

    /// Sets the limit of each wait for bytes of replies, for [`Conn::reply`], [`Conn::call`] and
    /// [`Conn::pipeline`].
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sets the most bytes of one reply; at first 1 GB, and 64 KB of those to AUTH and HELLO. An element of an
    /// array counts with the memory that it takes as a [`Frame`].
    pub fn set_reply_max(&mut self, bytes: usize) {
        self.reply_max = bytes;
    }

    /// Sends a request and waits for its reply, which may be an error reply. O(bytes). Where messages of RESP3
    /// may come in between, use [`Conn::send`] and [`Conn::reply`]. Errors: those of both.
    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Frame, Error> {
        let mut request = Vec::new();
        put_request(&mut request, words);
        self.send(&request)?;
        self.reply()
    }

    /// Sends requests and returns a reply for each, in order. Small ones are sent together, some KB before the
    /// replies to them are read (D3). O(bytes). Errors: those of [`Conn::send`] and [`Conn::reply`];
    /// the replies so far are lost.
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, requests: &[Vec<A>]) -> Result<Vec<Frame>, Error> {
        let mut replies = Vec::with_capacity(requests.len());
        let mut bytes = Vec::new();
        for (at, words) in requests.iter().enumerate() {
            let size: usize = words.iter().map(|word| word.as_ref().len() + WORD).sum();
            if bytes.len() + size > PIECE {
                self.exchange(&mut bytes, at, &mut replies)?;
            }
            put_request(&mut bytes, words);
        }
        self.exchange(&mut bytes, requests.len(), &mut replies)?;
        Ok(replies)
    }

    /// Sends the requests in `bytes` and reads the replies up to the one with the number `until`.
    fn exchange(&mut self, bytes: &mut Vec<u8>, until: usize, replies: &mut Vec<Frame>) -> Result<(), Error> {
        self.send(bytes)?;
        bytes.clear();
        while replies.len() < until {
            replies.push(self.reply()?);
        }
        Ok(())
    }

    /// Sends bytes as they are. O(bytes). Errors: [`Error::Late`], [`Error::Lost`]; in both cases part of
    /// the bytes may have been sent, and replies to earlier ones can still be read.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).map_err(|e| self.failed(e))
    }

    /// Closes the sending half; replies still come. Errors: the connection is closed.
    pub fn end_sending(&mut self) -> Result<(), Error> {
        self.stream.end_sending().map_err(Error::Lost)
    }

    /// The next reply or message of RESP3. Waits at most for the timeout, and longer while bytes come
    /// ([`Patience`]). O(bytes of the reply). Errors: [`Error::Late`], [`Error::Closed`], [`Error::Lost`],
    /// [`Error::NotResp`], [`Error::TooLong`].
    pub fn reply(&mut self) -> Result<Frame, Error> {
        let mut patience = Patience::new(self.timeout);
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            let came = self.receive(patience.left().ok_or(Error::Late)?)?;
            patience.came(came);
        }
    }

    /// As [`Conn::reply`], but waits for `limit` in all. What came of a late reply is kept (D4).
    pub fn reply_within(&mut self, limit: Duration) -> Result<Frame, Error> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.receive(deadline.saturating_duration_since(Instant::now()))?;
        }
    }

    /// The next reply if all of it has been received. Does not wait.
    fn buffered(&mut self) -> Result<Option<Frame>, Error> {
        let held = self.input.held();
        let end = self.end.find(held).map_err(Error::NotResp)?;
        let frames = usize::try_from(self.end.frames()).unwrap_or(usize::MAX);
        let size = end.unwrap_or(held.len()).saturating_add(frames.saturating_mul(size_of::<Frame>()));
        if size > self.reply_max {
            return Err(Error::TooLong(self.reply_max));
        }
        let Some(len) = end else { return Ok(None) };
        let Some((frame, used)) = read_frame(&held[..len]).map_err(Error::NotResp)? else { return Ok(None) };
        self.consume(used);
        Ok(Some(frame))
    }

    /// The bytes that were received and not consumed, for clients that read replies themselves.
    pub fn received(&self) -> &[u8] {
        self.input.held()
    }

    /// Drops the first `n` of the received bytes. O(1).
    pub fn consume(&mut self, n: usize) {
        self.input.drop_first(n);
        self.end = FrameEnd::new();
    }

    /// Waits until more bytes have been received: once, at most for `limit`. Returns how many came, at least 1.
    /// O(1) per byte. Errors: [`Error::Late`], [`Error::Closed`], [`Error::Lost`].
    pub fn receive(&mut self, limit: Duration) -> Result<usize, Error> {
        let deadline = Instant::now() + limit;
        let mut limit = limit.max(LEAST);
        loop {
            if self.read_limit != Some(limit) {
                self.stream.limit_reads(limit).map_err(Error::Lost)?;
                self.read_limit = Some(limit);
            }
            match self.stream.read(self.input.room()) {
                Ok(0) => return Err(Error::Closed { at_once: !self.heard }),
                Ok(n) => {
                    self.input.arrived(n);
                    self.heard = true;
                    return Ok(n);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {
                    limit = deadline.saturating_duration_since(Instant::now()).max(LEAST);
                }
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    fn failed(&self, e: io::Error) -> Error {
        match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Late,
            // TLS without a farewell.
            ErrorKind::UnexpectedEof => Error::Closed { at_once: !self.heard },
            ErrorKind::ConnectionReset if !self.heard => Error::Closed { at_once: true },
            _ => Error::Lost(e),
        }
    }
}
