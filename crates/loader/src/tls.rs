//! TLS to a server, with redis-cli's options: `--tls`, `--cacert`, `--cert`, `--insecure`, `--sni`; its
//! `--key` is `--cert-key` here.
//!
//! Unlike in redis-cli, the certificate must also be for the host, or for the name given with `--sni`.

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;
use tls::{Client, Identity, OptionFile, PeerName, Secret, Trust, Wrapped};

/// The options about TLS.
#[derive(Clone, Debug, Default)]
pub struct Words {
    pub cacert: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub cert_key: Option<PathBuf>,
    pub insecure: bool,
    pub sni: Option<String>,
}

/// How connections to one server are encrypted.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Client,
    name: PeerName,
}

impl Tls {
    /// Reads the files. `place`: `host:port`. Errors: files that are missing or wrong, a host that is no
    /// name.
    pub fn new(words: &Words, place: &str) -> Result<Tls, String> {
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
        let name = PeerName::of(words.sni.as_deref().unwrap_or(host).trim_matches(['[', ']']))?;
        let trust = match (&words.cacert, words.insecure) {
            (_, true) => Trust::Anyone,
            (Some(file), false) => Trust::Name(tls::roots_in(OptionFile::new("--cacert", file))?),
            (None, false) => Trust::Name(tls::system_roots("--cacert")?),
        };
        let identity = match (&words.cert, &words.cert_key) {
            (Some(cert), Some(key)) => {
                let (cert, key) = (OptionFile::new("--cert", cert), OptionFile::new("--cert-key", key));
                Some(Identity::read(cert, key, &Secret::default())?)
            }
            _ => None,
        };
        Ok(Tls { client: Client::new(trust, identity)?, name })
    }

    /// Begins TLS on a fresh connection, within `limit`. Errors: the server has none, or its certificate is
    /// refused.
    pub fn wrap(&self, stream: TcpStream, limit: Duration) -> Result<Wrapped<TcpStream>, String> {
        self.client.wrap(&self.name, stream, limit).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "it does not answer; is that its port for TLS?".to_owned()
            }
            _ => e.to_string(),
        })
    }
}
