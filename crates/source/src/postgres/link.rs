//! A connection in replication mode: the part of PostgreSQL's protocol that the feed needs.
//! <https://www.postgresql.org/docs/current/protocol-replication.html>
//!
//! ```text
//! connect ─► startup, password ─► query … ─► stream ─► next, status, next …
//! ```
//!
//! The caller limits waits. `next` may be dropped at any time without losing anything.

use super::pgoutput::{Bytes, EPOCH_US};
use super::tls::Tls;
use super::{failure_of, password_of};
use crate::Failure;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Longest message, more than a row can have.
const LONGEST: usize = 1 << 31;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) struct Link {
    stream: Box<dyn Stream>,
    /// Bytes that were read; those from `at` on are not given out yet.
    buffer: Vec<u8>,
    at: usize,
}

/// A message of a stream.
pub(super) enum Streamed<'a> {
    /// A message of the plugin.
    Data(&'a [u8]),
    /// Everything before position `end` was sent; `asks`: the server wants an answer.
    Alive { end: u64, asks: bool },
}

/// Rows as text.
type Rows = Vec<Vec<Option<String>>>;

fn down(why: impl ToString) -> Failure {
    Failure::Down(why.to_string())
}

fn garbled() -> Failure {
    down("the database sent an unexpected message")
}

impl Link {
    pub async fn connect(config: &Config, tls: &Tls) -> Result<Link, Failure> {
        let stream = open_stream(config, tls).await?;
        let mut link = Link { stream, buffer: Vec::new(), at: 0 };
        let user = config.get_user().unwrap_or("postgres");
        let parameters = [
            ("user", user),
            ("database", config.get_dbname().unwrap_or(user)),
            ("replication", "database"),
            ("application_name", "evenkeel feed"),
            ("client_encoding", "UTF8"),
            ("options", config.get_options().unwrap_or("")),
        ];
        let mut startup = 196_608u32.to_be_bytes().to_vec();
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
            startup.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        }
        startup.push(0);
        link.write(None, &startup).await?;
        link.authenticate(user, config).await?;
        link.until_ready().await?;
        Ok(link)
    }

    async fn authenticate(&mut self, user: &str, config: &Config) -> Result<(), Failure> {
        let mut scram: Option<ScramSha256> = None;
        let refused = |why: &str| Failure::Refused(why.into());
        loop {
            let (kind, body) = self.message().await?;
            if kind != b'R' {
                continue;
            }
            let mut body = Bytes(&body);
            match body.u32().ok_or_else(garbled)? {
                0 => return Ok(()),
                3 => {
                    let password = [password_of(config)?, b"\0"].concat();
                    self.write(Some(b'p'), &password).await?;
                }
                5 => {
                    let salt = body.take(4).and_then(|salt| salt.try_into().ok()).ok_or_else(garbled)?;
                    let hash = md5_hash(user.as_bytes(), password_of(config)?, salt);
                    self.write(Some(b'p'), &[hash.as_bytes(), b"\0"].concat()).await?;
                }
                10 => {
                    if !body.0.split(|b| *b == 0).any(|name| name == SCRAM_SHA_256.as_bytes()) {
                        return Err(refused("the database asks for an unsupported way of authentication"));
                    }
                    let begun = ScramSha256::new(password_of(config)?, ChannelBinding::unsupported());
                    let length = (begun.message().len() as u32).to_be_bytes();
                    let first = [SCRAM_SHA_256.as_bytes(), b"\0", &length, begun.message()].concat();
                    self.write(Some(b'p'), &first).await?;
                    scram = Some(begun);
                }
                11 => {
                    let begun = scram.as_mut().ok_or_else(garbled)?;
                    begun.update(body.0).map_err(|e| refused(&e.to_string()))?;
                    let next = begun.message().to_vec();
                    self.write(Some(b'p'), &next).await?;
                }
                12 => {
                    let begun = scram.as_mut().ok_or_else(garbled)?;
                    begun.finish(body.0).map_err(|e| refused(&e.to_string()))?;
                }
                _ => return Err(refused("the database asks for an unsupported way of authentication")),
            }
        }
    }

    /// Runs a command of the replication protocol and returns its rows.
    pub async fn query(&mut self, text: &str) -> Result<Rows, Failure> {
        self.write(Some(b'Q'), &[text.as_bytes(), b"\0"].concat()).await?;
        self.until_ready().await
    }

    async fn until_ready(&mut self) -> Result<Rows, Failure> {
        let mut rows = Vec::new();
        loop {
            match self.message().await? {
                (b'Z', _) => return Ok(rows),
                (b'D', body) => rows.push(row(&body).ok_or_else(garbled)?),
                _ => {}
            }
        }
    }

    /// Starts a stream; from then on only `next` and `status` may be called.
    pub async fn stream(&mut self, text: &str) -> Result<(), Failure> {
        self.write(Some(b'Q'), &[text.as_bytes(), b"\0"].concat()).await?;
        while self.message().await?.0 != b'W' {}
        Ok(())
    }

    pub async fn next(&mut self) -> Result<Streamed<'_>, Failure> {
        let range = loop {
            let (kind, body) = self.frame().await?;
            match kind {
                b'd' => break body,
                b'E' => return Err(error(&self.buffer[body])),
                b'c' | b'C' => return Err(down("the database ended the stream")),
                _ => {}
            }
        };
        let mut body = Bytes(&self.buffer[range]);
        let read = |body: &mut Bytes<'_>| match body.u8()? {
            b'w' => body.take(24).map(|_| None),
            b'k' => {
                let end = body.u64()?;
                body.u64()?;
                Some(Some((end, body.u8()? == 1)))
            }
            _ => None,
        };
        Ok(match read(&mut body).ok_or_else(garbled)? {
            None => Streamed::Data(body.0),
            Some((end, asks)) => Streamed::Alive { end, asks },
        })
    }

    /// Reports that everything before a position is done with; `ask`: wants a sign of life.
    pub async fn status(&mut self, done: u64, ask: bool) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as i64);
        let done = done.to_be_bytes();
        let time = now.saturating_sub(EPOCH_US).to_be_bytes();
        self.write(Some(b'd'), &[&b"r"[..], &done, &done, &done, &time, &[u8::from(ask)]].concat()).await
    }

    async fn write(&mut self, kind: Option<u8>, body: &[u8]) -> Result<(), Failure> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        let message = [kind.as_slice(), &length, body].concat();
        self.stream.write_all(&message).await.map_err(down)?;
        // The TLS layer may still hold bytes back.
        self.stream.flush().await.map_err(down)
    }

    /// The next message; an error message is an error.
    async fn message(&mut self) -> Result<(u8, Vec<u8>), Failure> {
        let (kind, body) = self.frame().await?;
        match kind {
            b'E' => Err(error(&self.buffer[body])),
            _ => Ok((kind, self.buffer[body].to_vec())),
        }
    }

    /// The kind of the next message and its range in the buffer. It is taken only when it is complete.
    async fn frame(&mut self) -> Result<(u8, std::ops::Range<usize>), Failure> {
        loop {
            let mut head = Bytes(&self.buffer[self.at..]);
            if let (Some(kind), Some(length)) = (head.u8(), head.u32()) {
                let length = length as usize;
                if !(4..LONGEST).contains(&length) {
                    return Err(garbled());
                }
                let (begin, end) = (self.at + 5, self.at + 1 + length);
                if end <= self.buffer.len() {
                    self.at = end;
                    return Ok((kind, begin..end));
                }
            }
            self.buffer.drain(..self.at);
            self.at = 0;
            self.buffer.reserve(16 << 10);
            if self.stream.read_buf(&mut self.buffer).await.map_err(down)? == 0 {
                return Err(down("the database closed the connection"));
            }
        }
    }
}

async fn open_stream(config: &Config, tls: &Tls) -> Result<Box<dyn Stream>, Failure> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let to = |e: std::io::Error| down(format!("cannot connect: {e}"));
    let host = match (config.get_hosts().first(), config.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => name.clone(),
        (_, address) => address.map_or(String::new(), ToString::to_string),
    };
    let stream = match (config.get_hostaddrs().first(), config.get_hosts().first()) {
        (Some(address), _) => tokio::net::TcpStream::connect((*address, port)).await.map_err(to)?,
        (None, Some(Host::Tcp(_))) => {
            tokio::net::TcpStream::connect((host.as_str(), port)).await.map_err(to)?
        }
        (None, Some(Host::Unix(folder))) => {
            let path = folder.join(format!(".s.PGSQL.{port}"));
            return Ok(Box::new(tokio::net::UnixStream::connect(path).await.map_err(to)?));
        }
        (None, None) => return Err(Failure::Refused("the url names no host".into())),
    };
    let _ = stream.set_nodelay(true);
    // A peer that is gone does not acknowledge bytes; a busy one does.
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(Duration::from_secs(10)));
    tls.wrap(stream, &host).await
}

fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let mut body = Bytes(body);
    let count = body.u16()?;
    let value = |body: &mut Bytes<'_>| match body.u32()? {
        u32::MAX => Some(None),
        length => body.take(length as usize).map(|text| Some(String::from_utf8_lossy(text).into_owned())),
    };
    (0..count).map(|_| value(&mut body)).collect()
}

/// Reads an error message.
fn error(body: &[u8]) -> Failure {
    let (mut body, mut code, mut text) = (Bytes(body), String::new(), String::new());
    while let Some((kind, value)) =
        body.u8().filter(|kind| *kind != 0).and_then(|kind| Some((kind, body.text()?)))
    {
        match kind {
            b'C' => code = value,
            b'M' => text = value,
            b'H' => text = format!("{text} ({value})"),
            _ => {}
        }
    }
    failure_of(&code, text)
}
