//! TLS as cheap for the client as it can be: the server is measured.
//!
//! The client takes any certificate and looks at no signature. So a full handshake costs it the agreement on
//! a key and no more. Version 1.3 alone is spoken, so that all servers do the same.

use bench::endpoint::Link;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, NamedGroup, SignatureScheme};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tickets kept of one store.
const TICKETS_MAX: usize = 4096;

/// Writes a certificate and its key, on the curve P-256, into `dir`.
pub fn papers(dir: &Path) -> io::Result<[PathBuf; 2]> {
    let made = || -> Result<[String; 2], rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec!["localhost".to_string()])?.self_signed(&key)?;
        Ok([certificate.pem(), key.serialize_pem()])
    };
    let texts = made().map_err(io::Error::other)?;
    let files = ["server.crt", "server.key"].map(|name| dir.join(name));
    files.iter().zip(texts).try_for_each(|(file, text)| std::fs::write(file, text))?;
    Ok(files)
}

/// The settings of clients. With `tickets` they resume sessions, without each handshake is a full one.
pub fn config(tickets: Option<&Arc<Tickets>>) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    config.resumption = match tickets {
        Some(tickets) => Resumption::store(tickets.clone()),
        None => Resumption::disabled(),
    };
    Ok(Arc::new(config))
}

/// A client's side of a connection that is about to begin.
pub fn session(config: &Arc<ClientConfig>) -> io::Result<ClientConnection> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    session.set_buffer_limit(None);
    Ok(session)
}

/// Opens a connection and shakes hands. The socket blocks.
pub fn connect(port: u16, config: &Arc<ClientConfig>) -> io::Result<(TcpStream, ClientConnection)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut session = session(config)?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok((stream, session))
}

/// A connection that never blocks.
pub fn link(port: u16, config: &Arc<ClientConfig>) -> io::Result<Box<dyn Link>> {
    let (stream, session) = connect(port, config)?;
    stream.set_nonblocking(true)?;
    Ok(Box::new(Secured { session, stream }))
}

struct Secured {
    session: ClientConnection,
    stream: TcpStream,
}

impl Link for Secured {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The session keeps what the socket does not take.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session.writer().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        flush(&mut self.session, &mut self.stream)
    }

    fn receive(&mut self, room: &mut [u8], feed: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        receive(&mut self.session, &mut self.stream, room, feed).map(|_| ())
    }
}

/// Writes what is to be sent, as much as the socket takes. True: nothing is left.
pub fn flush(session: &mut ClientConnection, stream: &mut TcpStream) -> io::Result<bool> {
    while session.wants_write() {
        match session.write_tls(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Reads once, and feeds what came through `buffer`. False: there was nothing to read. Errors: the end of the
/// stream, too.
pub fn receive(
    session: &mut ClientConnection,
    stream: &mut TcpStream,
    buffer: &mut [u8],
    mut feed: impl FnMut(&[u8]),
) -> io::Result<bool> {
    match session.read_tls(stream) {
        Ok(0) => {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        Ok(_) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    session.process_new_packets().map_err(io::Error::other)?;
    loop {
        match session.reader().read(buffer) {
            Ok(0) => return Ok(true),
            Ok(n) => feed(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// Tickets of sessions, each used once. The store of rustls keeps eight, too few for many at a time.
/// None is used before [`Tickets::release`].
#[derive(Default)]
pub struct Tickets {
    kept: Mutex<Vec<Tls13ClientSessionValue>>,
    released: AtomicBool,
}

impl Tickets {
    pub fn len(&self) -> usize {
        self.kept().len()
    }

    /// From now on tickets are used.
    pub fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Tls13ClientSessionValue>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tickets", self.len())
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut kept = self.kept();
        if kept.len() < TICKETS_MAX {
            kept.push(ticket);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        if self.released.load(Ordering::Relaxed) { self.kept().pop() } else { None }
    }
}

/// Takes every certificate.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_tls13_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
