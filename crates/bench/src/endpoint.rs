//! The server that is measured, and the ways to it.
//!
//! A [`Link`] is one nonblocking connection: over TCP, a Unix socket, or TLS. It is logged in before it is
//! handed out.

use reach::{Named, Words as TlsWords};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where a server is, how to log in, and what the keys of the benchmark begin with.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    pub server: Named,
    pub tls: TlsWords,
    /// Silence after which the server is given up.
    pub silence: Duration,
    /// The beginning of all keys that are written there.
    pub prefix: String,
    /// The name of the connections; empty: none is set.
    pub name: String,
    /// The number that random choices begin with.
    pub seed: u64,
}

/// Silence after which a server is given up, if nothing else is said.
const SILENCE: Duration = Duration::from_secs(180);

impl AsRef<Endpoint> for Endpoint {
    fn as_ref(&self) -> &Endpoint {
        self
    }
}

impl Endpoint {
    /// A server of this machine without a login. Its keys have no prefix.
    pub fn local(port: u16) -> Endpoint {
        let server = Named { place: format!("127.0.0.1:{port}"), ..Named::default() };
        Endpoint { server, silence: SILENCE, ..Endpoint::default() }
    }

    /// The same server for connections of another name.
    pub fn named(&self, name: &str) -> Endpoint {
        Endpoint { name: name.to_owned(), ..self.clone() }
    }

    /// The key of that name.
    pub fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    /// How [`dial`] reaches it. Errors: the files for TLS are wrong.
    pub fn address(&self) -> io::Result<dial::Address> {
        let place = &self.server.place;
        let tls = if self.server.tls {
            Some(reach::client(&self.tls, place).map_err(io::Error::other)?)
        } else {
            None
        };
        let password = self.server.password.clone();
        let login = password.map(|password| dial::Login { user: self.server.user.clone(), password });
        Ok(dial::Address { tls, login, ..dial::Address::new(place.as_str()).with_timeout(self.silence) })
    }

    /// The requests behind the login: the database, and the name.
    pub fn introduction(&self) -> Vec<Vec<Vec<u8>>> {
        let mut requests = Vec::new();
        if let Some(db) = self.server.db.filter(|db| *db != 0) {
            requests.push(vec![b"SELECT".to_vec(), db.to_string().into_bytes()]);
        }
        if !self.name.is_empty() {
            requests.push(vec![b"CLIENT".to_vec(), b"SETNAME".to_vec(), self.name.clone().into_bytes()]);
        }
        requests
    }

    /// Opens a connection that never blocks. Errors: the connection's; a login that is refused.
    pub fn link(&self) -> io::Result<Box<dyn Link>> {
        let address = self.address()?;
        let place = &self.server.place;
        if place.contains('/') {
            let stream = UnixStream::connect(place)?;
            self.introduce(&address, stream.try_clone()?)?;
            stream.set_nonblocking(true)?;
            return Ok(Box::new(stream));
        }
        let stream = dial::tcp(place, address.connect)?;
        match &address.tls {
            None => {
                self.introduce(&address, stream.try_clone()?)?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
            Some(tls) => {
                let mut secured = tls.wrap(stream, address.timeout).map_err(io::Error::other)?;
                let mut asked = Vec::new();
                let requests = self.greetings(&address);
                requests.iter().for_each(|words| dial::put_request(&mut asked, words));
                secured.write_all(&asked)?;
                secured.flush()?;
                await_replies(requests.len() as u64, |room| secured.read(room))?;
                secured.stream().set_nonblocking(true)?;
                Ok(Box::new(Secured { stream: secured }))
            }
        }
    }

    /// The login and the introduction, as requests.
    fn greetings(&self, address: &dial::Address) -> Vec<Vec<Vec<u8>>> {
        let mut requests = Vec::new();
        if let Some(login) = &address.login {
            let user = login.user.iter().map(|user| user.clone().into_bytes());
            let words =
                [b"AUTH".to_vec()].into_iter().chain(user).chain([login.password.clone().into_bytes()]);
            requests.push(words.collect());
        }
        requests.extend(self.introduction());
        requests
    }

    fn introduce(&self, address: &dial::Address, stream: impl dial::Stream + 'static) -> io::Result<()> {
        let requests = self.greetings(address);
        if requests.is_empty() {
            return Ok(());
        }
        let mut conn = dial::Conn::over(stream, address.timeout)?;
        let replies = conn.pipeline(&requests)?;
        match replies.iter().find(|reply| matches!(reply, dial::Frame::Error(_))) {
            Some(error) => Err(io::Error::other(error.lossy())),
            None => Ok(()),
        }
    }

    /// As JSON, for a process of its own. It has the password.
    pub fn to_json(&self) -> Value {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        json!({
            "place": self.server.place, "user": self.server.user, "password": self.server.password,
            "db": self.server.db, "tls": self.server.tls, "cacert": path(&self.tls.cacert),
            "cert": path(&self.tls.cert), "cert_key": path(&self.tls.cert_key), "insecure": self.tls.insecure,
            "sni": self.tls.sni, "silence_s": self.silence.as_secs(), "prefix": self.prefix, "name": self.name, "seed": self.seed,
        })
    }

    /// Reads what [`Endpoint::to_json`] made. What is missing has its default.
    pub fn from_json(value: &Value) -> Endpoint {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let path = |name: &str| text(name).map(PathBuf::from);
        let server = Named {
            place: text("place").unwrap_or_default(),
            user: text("user"),
            password: text("password"),
            db: value["db"].as_u64().and_then(|db| u32::try_from(db).ok()),
            tls: value["tls"] == true,
        };
        let tls = TlsWords {
            cacert: path("cacert"),
            cert: path("cert"),
            cert_key: path("cert_key"),
            insecure: value["insecure"] == true,
            sni: text("sni"),
        };
        let silence = value["silence_s"].as_u64().map_or(SILENCE, Duration::from_secs);
        let (prefix, name) = (text("prefix").unwrap_or_default(), text("name").unwrap_or_default());
        Endpoint { server, tls, silence, prefix, name, seed: value["seed"].as_u64().unwrap_or(0) }
    }
}

/// Reads until so many replies have come. Errors: an error reply, too.
fn await_replies(replies: u64, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
    let (mut count, mut complete, mut room) = (dial::FrameCount::default(), 0, [0; 4096]);
    while complete < replies {
        match read(&mut room)? {
            0 => return Err(closed()),
            n => complete += count.feed(&room[..n]),
        }
    }
    match count.errors() {
        (0, _) => Ok(()),
        (_, text) => Err(io::Error::other(text)),
    }
}

/// The error of a connection that the server has ended.
pub fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// A connection that never blocks.
pub trait Link: Send {
    /// The descriptor to wait for.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes as many of `bytes` as there is room for, and returns their number. Errors: the connection's.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends what was taken and could not be sent yet. True: nothing is left. Errors: the connection's.
    fn flush(&mut self) -> io::Result<bool>;

    /// Feeds what has come, by way of `room`. Errors: the connection's; its end.
    fn receive(&mut self, room: &mut [u8], feed: &mut dyn FnMut(&[u8])) -> io::Result<()>;
}

/// The bytes of a call that may find nothing to do.
fn some(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads once: level-triggered waiting comes back for the rest.
fn receive_once(stream: &mut impl Read, room: &mut [u8], feed: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    match some(stream.read(room))? {
        Some(0) => Err(closed()),
        Some(n) => {
            feed(&room[..n]);
            Ok(())
        }
        None => Ok(()),
    }
}

impl Link for TcpStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(some(self.write(bytes))?.unwrap_or(0))
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, room: &mut [u8], feed: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        receive_once(self, room, feed)
    }
}

impl Link for UnixStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(some(self.write(bytes))?.unwrap_or(0))
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, room: &mut [u8], feed: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        receive_once(self, room, feed)
    }
}

/// Bytes that come without a pause from no server in order.
const FLOOD: usize = 4 << 30;

/// A connection with TLS.
struct Secured {
    stream: reach::Wrapped<TcpStream>,
}

impl Link for Secured {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.stream().as_fd()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(some(self.stream.write(bytes))?.unwrap_or(0))
    }

    fn flush(&mut self) -> io::Result<bool> {
        match Write::flush(&mut self.stream) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads until nothing is left, as the session may keep plaintext that the socket does not show.
    fn receive(&mut self, room: &mut [u8], feed: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut came = 0;
        while came < FLOOD {
            match some(self.stream.read(room))? {
                Some(0) => return Err(closed()),
                Some(n) => {
                    feed(&room[..n]);
                    came += n;
                }
                None => return Ok(()),
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the server sends without end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_the_way_to_its_process() {
        let server = Named {
            place: "h:1".into(),
            user: Some("ann".into()),
            password: Some("p\"w".into()),
            db: Some(3),
            tls: true,
        };
        let tls = TlsWords { cacert: Some("/ca".into()), insecure: true, ..TlsWords::default() };
        let (silence, prefix, name) = (Duration::from_secs(7), "p:".into(), "n".into());
        let endpoint = Endpoint { server, tls, silence, prefix, name, seed: u64::MAX };
        let read = Endpoint::from_json(&serde_json::from_str(&endpoint.to_json().to_string()).unwrap());
        assert_eq!(format!("{read:?}"), format!("{endpoint:?}"));
        assert_eq!(read.key("k"), b"p:k");
    }
}
