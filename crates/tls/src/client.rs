//! The client half: connections that this program opens to other servers.
//!
//! ```text
//! options, directives ──files──► Trust, Identity ──► Client ──wrap──► Wrapped: plaintext over any stream
//! ```
//!
//! - CL1: the signature of a handshake is checked always, the server's certificate as [`Trust`] says.
//! - CL2: an error names what is wrong: an option and its file, or the server's certificate.
//! - CL3: a handshake ends within its limit, also if the server sends byte by byte.
//!
//! Cost: making a [`Client`] reads files. A handshake is a few operations with keys.

use crate::files::{self, OptionFile, Roots, Secret};
use crate::suites;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
    StreamOwned, SupportedProtocolVersion,
};
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The servers that a client accepts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// All: the connection is encrypted, but the peer is unknown.
    Anyone,
    /// Servers with a certificate from these roots, for whatever name.
    AnyName(Roots),
    /// Servers with a certificate from these roots, for the name that is called.
    Name(Roots),
}

/// A client's certificate and its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The option and the file of the certificate.
    told: String,
}

impl Identity {
    /// Reads the files; `password` is the key's, and empty if it has none. Errors: a sentence that names the
    /// option.
    pub fn read(cert: OptionFile<'_>, key: OptionFile<'_>, password: &Secret) -> Result<Identity, String> {
        let chain = files::certificates(cert.path).map_err(|e| cert.wrong(&e))?;
        let key = files::key(key.path, password).map_err(|e| key.wrong(&e))?;
        Ok(Identity { chain, key, told: cert.to_string() })
    }
}

/// The name of a server, or its address.
#[derive(Clone, Debug)]
pub struct PeerName(ServerName<'static>);

impl PeerName {
    /// Errors: it is neither.
    pub fn of(host: &str) -> Result<PeerName, String> {
        let name = ServerName::try_from(host.to_owned());
        name.map(PeerName).map_err(|_| format!("'{host}' is not a server name"))
    }
}

/// How connections to servers are encrypted.
#[derive(Clone, Debug)]
pub struct Client(Arc<ClientConfig>);

impl Client {
    /// Makes a client with all ciphers. Errors: the key does not fit the certificate.
    pub fn new(trust: Trust, identity: Option<Identity>) -> Result<Client, String> {
        Client::with(suites::all(), &suites::BOTH, trust, identity)
    }

    /// Makes the client of a server's directives, by name: its roots, `tls-client-cert-file` or else
    /// `tls-cert-file`, versions and ciphers. Certificates may be for whatever name, as in Redis. Blocks.
    /// Errors: a sentence that names the directive.
    pub fn of(value: impl Fn(&str) -> String) -> Result<Client, String> {
        let path = |name: &str| Some(value(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let (ca_file, ca_dir) = (path("tls-ca-cert-file"), path("tls-ca-cert-dir"));
        let trusted = files::trusted(ca_file.as_deref(), ca_dir.as_deref())?;
        if trusted.is_empty() {
            return Err("connections to other servers need tls-ca-cert-file or tls-ca-cert-dir: what their \
                        certificates must come from"
                .to_owned());
        }
        let roots = files::roots_of(&trusted).map_err(|e| format!("tls-ca-cert-file: {e}"))?;
        let own = path("tls-client-cert-file").is_some();
        let names = match own {
            true => ["tls-client-cert-file", "tls-client-key-file", "tls-client-key-file-pass"],
            false => ["tls-cert-file", "tls-key-file", "tls-key-file-pass"],
        };
        let identity = match (path(names[0]), path(names[1])) {
            (Some(cert), Some(key)) => {
                let password = Secret::new(value(names[2]));
                let (cert, key) = (OptionFile::new(names[0], &cert), OptionFile::new(names[1], &key));
                Some(Identity::read(cert, key, &password)?)
            }
            (None, _) => None,
            (Some(_), None) => return Err(format!("{} needs {}", names[0], names[1])),
        };
        let provider = suites::provider(&value("tls-ciphers"), &value("tls-ciphersuites"))?;
        let versions = suites::versions(&value("tls-protocols"))?;
        Client::with(provider, &versions, Trust::AnyName(roots), identity)
    }

    fn with(
        provider: CryptoProvider,
        versions: &[&'static SupportedProtocolVersion],
        trust: Trust,
        identity: Option<Identity>,
    ) -> Result<Client, String> {
        let provider = Arc::new(provider);
        let verifier = Verifier::new(trust, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| suites::unfit(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { chain, key, told }) => {
                config.with_client_auth_cert(chain, key).map_err(|e| format!("{told}: {e}"))?
            }
        };
        Ok(Client(Arc::new(config)))
    }

    /// The settings, for adapters of drivers that want them as rustls has them.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }

    /// Begins TLS on a fresh connection. `limit`: for the whole handshake; each read of the stream should
    /// have a limit, too. Errors: the server's certificate is refused, or ours, or it has no TLS
    /// ([`ErrorKind::InvalidData`]); the stream's own.
    pub fn wrap<S: Read + Write>(
        &self,
        name: &PeerName,
        mut stream: S,
        limit: Duration,
    ) -> io::Result<Wrapped<S>> {
        let mut session = ClientConnection::new(self.0.clone(), name.0.clone()).map_err(io::Error::other)?;
        let until = Instant::now() + limit;
        loop {
            while session.wants_write() {
                again(|| session.write_tls(&mut stream))?;
            }
            if !session.is_handshaking() {
                return Ok(Wrapped(StreamOwned::new(session, stream)));
            }
            if Instant::now() >= until {
                return Err(ErrorKind::TimedOut.into()); // CL3
            }
            if again(|| session.read_tls(&mut stream))? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            if let Err(e) = session.process_new_packets() {
                // The alert tells the server why, if it still listens.
                let _ = session.write_tls(&mut stream);
                return Err(io::Error::new(ErrorKind::InvalidData, e));
            }
        }
    }
}

/// Repeats a call that a signal interrupts.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A stream whose bytes are encrypted.
pub struct Wrapped<S: Read + Write>(StreamOwned<ClientConnection, S>);

impl<S: Read + Write> Wrapped<S> {
    /// The stream below, for its limits of time.
    pub fn stream(&self) -> &S {
        &self.0.sock
    }
}

impl<S: Read + Write> Wrapped<S> {
    /// The reason for an error. A server that refuses our certificate says so and goes, perhaps before we
    /// have written.
    fn reason(&mut self, e: io::Error) -> io::Error {
        if !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
            return e;
        }
        while self.0.conn.read_tls(&mut self.0.sock).is_ok_and(|n| n > 0) {
            if let Err(alert) = self.0.conn.process_new_packets() {
                return io::Error::new(ErrorKind::InvalidData, alert);
            }
        }
        e
    }
}

impl<S: Read + Write> Read for Wrapped<S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room).map_err(|e| self.reason(e))
    }
}

impl<S: Read + Write> Write for Wrapped<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|e| self.reason(e))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|e| self.reason(e))
    }
}

/// Reads the certificates to trust from a file. Errors: a sentence that names the option.
pub fn roots_in(file: OptionFile<'_>) -> Result<Roots, String> {
    files::certificates(file.path).and_then(|found| files::roots_of(&found)).map_err(|e| file.wrong(&e))
}

/// The certificates that the system trusts. Errors: there are none; `option` could name others.
pub fn system_roots(option: &str) -> Result<Roots, String> {
    files::roots_of_system()
        .ok_or_else(|| format!("the system has no root certificates: name some by {option}"))
}

/// A verifier of servers' certificates (CL1).
#[derive(Debug)]
struct Verifier {
    /// None: any certificate is accepted.
    roots: Option<Arc<WebPkiServerVerifier>>,
    any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(trust: Trust, provider: &Arc<CryptoProvider>) -> Result<Verifier, String> {
        let (roots, any_name) = match trust {
            Trust::Anyone => (None, true),
            Trust::AnyName(roots) => (Some(roots), true),
            Trust::Name(roots) => (Some(roots), false),
        };
        let built = roots
            .map(|roots| WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build())
            .transpose();
        Ok(Verifier { roots: built.map_err(|e| e.to_string())?, any_name, provider: provider.clone() })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        // The name is checked last, so a wrong name alone means that the chain is right.
        match roots.verify_server_cert(cert, chain, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
