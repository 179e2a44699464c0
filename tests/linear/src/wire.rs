//! A blocking client of RESP2, and of what tracking needs of RESP3; small enough to be trusted.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Time after which a server without a reply counts as hung. No figure is tested by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Frame>),
    /// A message of RESP3.
    Push(Vec<Frame>),
}

impl Frame {
    pub fn is_ok(&self) -> bool {
        matches!(self, Frame::Simple(text) if text == "OK")
    }

    /// The elements of an array; `None` for everything else.
    pub fn array(self) -> Option<Vec<Frame>> {
        match self {
            Frame::Array(items) => Some(items),
            _ => None,
        }
    }

    /// A bulk that is a decimal number.
    pub fn number(&self) -> Option<i64> {
        match self {
            Frame::Bulk(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            Frame::Int(n) => Some(*n),
            _ => None,
        }
    }
}

pub struct Conn {
    stream: TcpStream,
    input: Vec<u8>,
    at: usize,
}

impl Conn {
    pub fn open(addr: SocketAddr) -> io::Result<Conn> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Conn { stream, input: Vec::new(), at: 0 })
    }

    /// Opens a connection and selects a database.
    pub fn open_db(addr: SocketAddr, db: usize) -> io::Result<Conn> {
        let mut conn = Conn::open(addr)?;
        match conn.call(&["SELECT", &db.to_string()])? {
            frame if frame.is_ok() => Ok(conn),
            other => Err(io::Error::other(format!("SELECT answered {other:?}"))),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Frame> {
        let mut out = Vec::new();
        encode(args, &mut out);
        self.send(&out)?;
        self.read()
    }

    /// Sends several requests at once and reads their replies.
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, requests: &[Vec<A>]) -> io::Result<Vec<Frame>> {
        let mut out = Vec::new();
        requests.iter().for_each(|args| encode(args, &mut out));
        self.send(&out)?;
        requests.iter().map(|_| self.read()).collect()
    }

    pub fn read(&mut self) -> io::Result<Frame> {
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
        self.frame()
    }

    fn frame(&mut self) -> io::Result<Frame> {
        let line = self.line()?;
        let Some((&mark, rest)) = line.split_first() else { return Err(bad("an empty line")) };
        let text = String::from_utf8_lossy(rest).into_owned();
        let number = || text.parse::<i64>().map_err(|_| bad(&format!("a bad number: {text:?}")));
        Ok(match mark {
            b'+' => Frame::Simple(text),
            b'-' => Frame::Error(text),
            b':' => Frame::Int(number()?),
            b'$' => match number()? {
                n if n < 0 => Frame::Nil,
                n => Frame::Bulk(self.bulk(n as usize)?),
            },
            b'*' => match number()? {
                n if n < 0 => Frame::Nil,
                n => Frame::Array((0..n).map(|_| self.frame()).collect::<io::Result<_>>()?),
            },
            b'_' => Frame::Nil,
            b'>' => Frame::Push((0..number()?).map(|_| self.frame()).collect::<io::Result<_>>()?),
            b'%' => Frame::Array((0..2 * number()?).map(|_| self.frame()).collect::<io::Result<_>>()?),
            _ => return Err(bad(&format!("an unknown type of reply: {:?}", String::from_utf8_lossy(&line)))),
        })
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut seen = self.at;
        loop {
            if let Some(end) = self.input[seen..].iter().position(|byte| *byte == b'\n') {
                let end = seen + end;
                let line = self.input[self.at..end.max(self.at + 1) - 1].to_vec();
                self.at = end + 1;
                return Ok(line);
            }
            seen = self.input.len();
            self.fill()?;
        }
    }

    fn bulk(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.input.len() < self.at + len + 2 {
            self.fill()?;
        }
        let body = self.input[self.at..self.at + len].to_vec();
        self.at += len + 2;
        Ok(body)
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"))
            }
            Err(e) => Err(e),
        }
    }
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Appends a request as client libraries write it.
pub fn encode<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.as_ref().len()).as_bytes());
        out.extend_from_slice(arg.as_ref());
        out.extend_from_slice(b"\r\n");
    }
}
