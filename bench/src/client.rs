//! A plain blocking connection, to prepare data and to check answers.

use crate::wire::{self, Scanner, Value};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(180)))?;
        Ok(Client { stream: BufReader::with_capacity(256 << 10, stream) })
    }

    /// Sends one encoded command and reads its reply. Errors: an error reply, too.
    pub fn send(&mut self, command: &[u8]) -> io::Result<Value> {
        self.stream.get_mut().write_all(command)?;
        match Value::read(&mut self.stream)? {
            Value::Error(text) => Err(io::Error::other(text)),
            value => Ok(value),
        }
    }

    /// Sends encoded commands, whose replies [`Client::read`] gives one by one.
    pub fn write(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(commands)
    }

    /// Reads the next reply. An error reply is a value like others.
    pub fn read(&mut self) -> io::Result<Value> {
        Value::read(&mut self.stream)
    }

    /// Sends one command written as words separated by spaces.
    pub fn words(&mut self, line: &str) -> io::Result<Value> {
        let mut command = Vec::new();
        wire::command(&mut command, &line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        self.send(&command)
    }

    /// DBSIZE.
    pub fn size(&mut self) -> io::Result<u64> {
        match self.words("DBSIZE")? {
            Value::Int(n) => Ok(n as u64),
            other => Err(io::Error::other(format!("DBSIZE answered {other:?}"))),
        }
    }

    /// Sends encoded commands, skips `replies` replies, and returns the time taken. Errors: as
    /// [`Client::send`].
    pub fn discard(&mut self, commands: &[u8], replies: u64) -> io::Result<Duration> {
        let start = Instant::now();
        self.stream.get_mut().write_all(commands)?;
        let mut scanner = Scanner::default();
        let mut complete = 0;
        while complete < replies {
            let bytes = self.stream.fill_buf()?;
            if bytes.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            complete += scanner.feed(bytes);
            let n = bytes.len();
            self.stream.consume(n);
        }
        match scanner.errors() {
            (0, _) => Ok(start.elapsed()),
            (_, text) => Err(io::Error::other(text)),
        }
    }
}
