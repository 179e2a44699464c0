//! The listening sockets. They are made before anything else starts, so that a port in use is reported at
//! once. The report names its owner and a command that would work.
//!
//! - B1: an address written `-address` may be missing on this machine, but not in use.
//! - B2: a unix socket left behind by a dead server is replaced; one that answers is not.
//! - B3: a server that starts right after another's end finds its addresses free. The ending server stops
//!   listening first ([`Closer`]). The starting one tries again for [`PATIENCE`], because a killed server
//!   leaves its sockets to the system.

use crate::owner;
use config::Config;
use parking_lot::Mutex;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Least number of connections that may wait to be accepted, as far as the system permits (`somaxconn`). A
/// client that finds the backlog full tries again only after a second.
const BACKLOG_LEAST: i32 = 4096;

/// How long an address in use is tried again, and the time between two tries (B3).
const PATIENCE: Duration = Duration::from_millis(1500);
const AGAIN: Duration = Duration::from_millis(20);

/// Settings of a listener.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    backlog: i32,
    keepalive_s: u64,
}

impl Line {
    pub(crate) fn of(config: &Config) -> Line {
        let backlog = (config.live.tcp_backlog.get() as i32).max(BACKLOG_LEAST);
        Line { backlog, keepalive_s: config.live.tcp_keepalive_s.get() as u64 }
    }
}

/// The protocol that the clients of a listening socket speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Tcp,
    Http,
    Tls,
    Https,
}

/// Everything the server listens on; at least one socket.
#[derive(Debug)]
pub struct Sockets {
    /// Non-blocking.
    pub tcp: Vec<TcpListener>,
    /// For HTTP. Non-blocking.
    pub http: Vec<TcpListener>,
    /// For TLS, and for HTTP over TLS. Non-blocking.
    pub tls: Vec<TcpListener>,
    pub https: Vec<TcpListener>,
    /// Non-blocking. The path is removed when this is dropped.
    pub unix: Option<UnixSocket>,
}

#[derive(Debug)]
pub struct UnixSocket {
    pub listener: UnixListener,
    pub path: PathBuf,
    /// Device and inode number of the socket file.
    file: (u64, u64),
}

impl Sockets {
    /// All but the unix socket.
    pub fn inet(&self) -> impl Iterator<Item = &TcpListener> {
        self.by_kind().map(|(_, socket)| socket)
    }

    fn by_kind(&self) -> impl Iterator<Item = (Kind, &TcpListener)> {
        let kinds = [
            (Kind::Tcp, &self.tcp),
            (Kind::Http, &self.http),
            (Kind::Tls, &self.tls),
            (Kind::Https, &self.https),
        ];
        kinds.into_iter().flat_map(|(kind, sockets)| sockets.iter().map(move |socket| (kind, socket)))
    }
}

/// A second descriptor of a listening socket, by which it can be told to stop.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    socket: OwnedFd,
}

impl Held {
    /// Errors: the system has no descriptor to give.
    pub(crate) fn of(kind: Kind, socket: &TcpListener) -> io::Result<Held> {
        Ok(Held { kind, address: socket.local_addr()?, socket: socket.try_clone()?.into() })
    }

    /// Ends listening, whoever else has the socket. Its address can be bound by others then.
    pub(crate) fn stop(&self) {
        // The call can only fail for a socket that does not listen any more.
        let _ = net::shutdown(&self.socket, net::Shutdown::Both);
    }

    /// Listens again. Errors: others listen there now.
    pub(crate) fn listen_again(&self, line: Line) -> io::Result<()> {
        Ok(net::listen(&self.socket, line.backlog)?)
    }
}

impl UnixSocket {
    /// Removes the file at the path if it is still this socket: another server may have replaced it.
    fn remove(&self) {
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            // The file may have been removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

fn file_at(path: &std::path::Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Ends listening even if others hold the sockets. A ring that polls them keeps them for some time after the
/// end of the process.
#[derive(Debug, Default)]
pub struct Closer {
    /// None from when listening has ended.
    held: Mutex<Option<Vec<Held>>>,
    unix: Option<UnixSocket>,
}

impl Closer {
    /// Makes a closer of these sockets. It removes the path of the unix socket. Errors: a socket cannot be
    /// duplicated.
    pub fn of(sockets: Sockets) -> io::Result<(Closer, ::net::Listeners)> {
        let held = sockets.by_kind().map(|(kind, socket)| Held::of(kind, socket));
        let held = Mutex::new(Some(held.collect::<io::Result<_>>()?));
        let Sockets { tcp, http, tls, https, unix } = sockets;
        let closer = Closer { held, unix };
        let unix = match &closer.unix {
            Some(unix) => vec![unix.listener.try_clone()?],
            None => Vec::new(),
        };
        let mut listeners = ::net::Listeners::default();
        (listeners.tcp, listeners.unix, listeners.http) = (tcp, unix, http);
        (listeners.tls, listeners.https) = (tls, https);
        Ok((closer, listeners))
    }

    /// Reads or changes the list of sockets. None: listening has ended.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Vec<Held>) -> T) -> Option<T> {
        self.held.lock().as_mut().map(work)
    }

    /// Ends listening: no client is accepted any more, and others may listen here. Connections stay.
    pub fn close(&self) {
        // The path goes first: a server that gets no answer there puts its own socket in its place.
        if let Some(unix) = &self.unix {
            unix.remove();
            let _ = net::shutdown(&unix.listener, net::Shutdown::Both);
        }
        let held = self.held.lock().take();
        held.into_iter().flatten().for_each(|socket| socket.stop());
    }
}

/// Repeats an attempt until it works, fails otherwise than by an address in use, or [`PATIENCE`] is over.
fn patiently<T>(place: &dyn std::fmt::Display, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let since = Instant::now();
    loop {
        let result = attempt();
        if !result.as_ref().is_err_and(in_use) || since.elapsed() >= PATIENCE {
            return result;
        }
        if since.elapsed() < AGAIN {
            log::info!("{place} is in use: trying again for a moment, in case its server is just ending");
        }
        std::thread::sleep(AGAIN);
    }
}

/// Why the server cannot listen, for the person who started it.
#[derive(Debug)]
pub struct ListenError(pub String);

/// Listens on every configured address and path. `args` is the command line, for the hint in the error.
/// Errors: an address is in use, missing or not allowed, or none is configured.
pub fn listen(config: &Config, args: &[OsString]) -> Result<Sockets, ListenError> {
    let (port, backlog) = (config.live.port.get() as u16, config.live.tcp_backlog.get() as i32);
    let line = Line::of(config);
    let tcp = bind_all(&config.bind(), port, line, |taken| port_in_use(config, taken, args))?;
    let http_port = config.live.http_port.get() as u16;
    let other = |name: &'static str| {
        move |taken: SocketAddr| {
            let owner = owner::of_port(taken.port()).map(|o| format!(" by {o}")).unwrap_or_default();
            ListenError(format!("{taken} is already in use{owner}. Set another {name}."))
        }
    };
    let http = bind_all(&config.http_bind(), http_port, line, other("http-port"))?;
    let (tls_port, https_port) = (config.live.tls_port.get() as u16, config.live.http_tls_port.get() as u16);
    let tls = bind_all(&config.bind(), tls_port, line, other("tls-port"))?;
    let https = bind_all(&config.http_bind(), https_port, line, other("http-tls-port"))?;
    let unix = if config.live.unixsocket.is_empty() { None } else { Some(unix(config, backlog)?) };
    if [&tcp, &http, &tls, &https].iter().all(|sockets| sockets.is_empty()) && unix.is_none() {
        return Err(ListenError("Nothing to listen on: set a port, or a unixsocket.".into()));
    }
    Ok(Sockets { tcp, http, tls, https, unix })
}

/// Listens on a port of all these addresses; on none if the port is 0.
fn bind_all(
    names: &[(String, bool)],
    port: u16,
    line: Line,
    taken: impl Fn(SocketAddr) -> ListenError,
) -> Result<Vec<TcpListener>, ListenError> {
    let mut sockets = Vec::new();
    for (name, optional) in names.iter().filter(|_| port != 0) {
        for address in addresses(name, port, *optional)? {
            match patiently(&address, || bind(address, line)) {
                Ok(socket) => sockets.push(socket),
                Err(e) if *optional && !in_use(&e) => {}
                Err(e) if in_use(&e) => return Err(taken(address)),
                Err(e) => return Err(ListenError(cannot_listen(address, &e))),
            }
        }
    }
    Ok(sockets)
}

/// The addresses of one word of `bind`; `*` and `::*` mean all addresses.
pub(crate) fn addresses(name: &str, port: u16, optional: bool) -> Result<Vec<SocketAddr>, ListenError> {
    let name = match name {
        "*" => "0.0.0.0",
        "::*" => "::",
        name => name,
    };
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    match (name, port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(_) if optional => Ok(Vec::new()),
        Err(e) => Err(ListenError(format!("Cannot listen on '{name}': {e}"))),
    }
}

pub(crate) fn bind(address: SocketAddr, line: Line) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // So that `bind * ::*` does not collide with itself.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    ::net::prepare(&socket, line.keepalive_s);
    net::listen(&socket, line.backlog)?;
    Ok(TcpListener::from(socket))
}

pub(crate) fn in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

pub(crate) fn cannot_listen(address: SocketAddr, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => " Ports below 1024 usually need root; choose a higher one.",
        io::ErrorKind::AddrNotAvailable => " No network interface of this machine has that address.",
        _ => "",
    };
    format!("Cannot listen on {address}: {}.{hint}", plain(error))
}

/// The system's error text without the number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn port_in_use(config: &Config, address: SocketAddr, args: &[OsString]) -> ListenError {
    let port = address.port();
    let owner = owner::of_port(port).map(|o| format!(" by {o}")).unwrap_or_default();
    let mut text = format!("{address} is already in use{owner}.");
    if let Some(free) = free_port(config, port) {
        text.push_str(&format!(
            "\nPort {free} is free. To use it:\n\n    {}\n",
            command_with_port(args, free)
        ));
    }
    ListenError(text)
}

/// The next port that is free on every configured address.
fn free_port(config: &Config, taken: u16) -> Option<u16> {
    let names = config.bind();
    let free = |port: &u16| {
        let all = names.iter().flat_map(|(name, _)| addresses(name, *port, true).unwrap_or_default());
        let line = Line { backlog: 1, keepalive_s: 0 };
        all.map(|address| bind(address, line)).all(|made| !made.is_err_and(|e| in_use(&e)))
    };
    (1..200).filter_map(|n| taken.checked_add(n)).find(free)
}

/// The command line as typed, with another port.
fn command_with_port(args: &[OsString], port: u16) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut args = args.iter().map(|a| a.to_string_lossy());
    while let Some(word) = args.next() {
        match word.as_ref() {
            "--port" => drop(args.next()),
            word if word.starts_with("--port=") => {}
            word => words.push(shell_quoted(word)),
        }
    }
    format!("{} --port {port}", words.join(" "))
}

/// Quotes a word for a shell.
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn unix(config: &Config, backlog: i32) -> Result<UnixSocket, ListenError> {
    let path = PathBuf::from(config.live.unixsocket.string());
    let failed = |e: io::Error| ListenError(format!("Cannot listen on {}: {}.", path.display(), plain(&e)));
    let free = patiently(&path.display(), || match UnixStream::connect(&path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(_) => Ok(()),
    });
    if free.is_err() {
        return Err(ListenError(format!("{} is already in use by a running server.", path.display())));
    }
    remove_stale(&path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).and_then(|socket| {
        net::bind(&socket, &net::SocketAddrUnix::new(&path)?)?;
        net::listen(&socket, backlog)?;
        Ok(socket)
    });
    let listener = UnixListener::from(made.map_err(|e| failed(e.into()))?);
    // From here on this server removes the path.
    let file = file_at(&path).map_err(failed)?;
    let socket = UnixSocket { listener, path: path.clone(), file };
    let mode = config.live.unixsocket_mode.get() as u32;
    if mode != 0 {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(socket)
}

/// Removes a socket without a listener; anything else at the path stays and makes the bind fail.
fn remove_stale(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    fn config(text: &str) -> Config {
        let sources = Sources { stdin: true, ..Sources::default() };
        Config::load(&sources, &mut text.as_bytes()).unwrap()
    }

    #[test]
    fn a_taken_port_is_told_with_its_owner_and_a_way_out() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let args = ["evenkeel", "my conf", "--port", &port.to_string()].map(OsString::from);
        let error = listen(&config(&format!("bind 127.0.0.1\nport {port}")), &args).unwrap_err().0;
        assert!(error.contains(&format!("127.0.0.1:{port} is already in use by")), "{error}");
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        assert!(error.contains("evenkeel 'my conf' --port "), "{error}");
    }

    #[test]
    fn a_missing_optional_address_is_no_error() {
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        };
        let sockets = listen(&config(&format!("bind 127.0.0.1 -192.0.2.1\nport {port}")), &[]).unwrap();
        assert_eq!(sockets.tcp.len(), 1);
        drop(sockets);
        let error = listen(&config(&format!("bind 192.0.2.1\nport {port}")), &[]).unwrap_err().0;
        assert!(error.contains("No network interface"), "{error}");
        assert!(listen(&config("port 0"), &[]).unwrap_err().0.contains("Nothing to listen on"));
    }

    #[test]
    fn a_dead_unix_socket_is_replaced_and_a_live_one_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let config = config(&format!("port 0\nunixsocket {}\nunixsocketperm 700", path.display()));
        drop(UnixListener::bind(&path).unwrap());
        let sockets = listen(&config, &[]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(listen(&config, &[]).unwrap_err().0.contains("running server"));
        drop(sockets);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(listen(&config, &[]).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    /// A copy of a listener stands for a ring that still polls it.
    #[test]
    fn who_stops_listening_leaves_the_places_to_others_whoever_holds_the_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = format!("bind 127.0.0.1\nport {port}\nunixsocket {}", path.display());
        let sockets = listen(&config(&text), &[]).unwrap();
        let held = (sockets.tcp[0].try_clone().unwrap(), sockets.unix.as_ref().unwrap().listener.try_clone());
        let (closer, listeners) = Closer::of(sockets).unwrap();
        closer.close();
        drop(listeners);
        let line = Line { backlog: 1, keepalive_s: 0 };
        bind(SocketAddr::from(([127, 0, 0, 1], port)), line).unwrap();
        assert!(!path.exists() && UnixStream::connect(&path).is_err());
        let next = listen(&config(&text), &[]).unwrap();
        // The socket there is now another server's.
        drop(closer);
        assert!(path.exists() && UnixStream::connect(&path).is_ok());
        drop((next, held));
        assert!(!path.exists());
    }

    #[test]
    fn a_place_in_use_is_tried_again() {
        let mut attempts = 0;
        let made = patiently(&"here", || {
            attempts += 1;
            if attempts < 4 { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(()) }
        });
        assert!(made.is_ok() && attempts == 4);
        let mut attempts = 0;
        let refused = patiently(&"here", || -> io::Result<()> {
            attempts += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert!(refused.is_err() && attempts == 1);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(shell_quoted("a/b.conf"), "a/b.conf");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }
}
