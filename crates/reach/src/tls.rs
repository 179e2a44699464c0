//! TLS to a server, with redis-cli's options: `--tls`, `--cacert`, `--cert`, `--insecure`, `--sni`; its
//! `--key` is `--cert-key` here.
//!
//! Unlike in redis-cli, the certificate must also be for the host, or for the name given with `--sni`.

use std::path::PathBuf;
use tls::{Client, Identity, OptionFile, PeerName, Secret, Trust};

/// The options about TLS.
#[derive(Clone, Debug, Default)]
pub struct Words {
    pub cacert: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub cert_key: Option<PathBuf>,
    pub insecure: bool,
    pub sni: Option<String>,
}

/// How connections to a server are encrypted. Reads the files. `place`: `host:port`. Errors: files that are
/// missing or wrong, a host that is no name.
pub fn client(words: &Words, place: &str) -> Result<dial::Tls, String> {
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
    Ok(dial::Tls::new(Client::new(trust, identity)?, name))
}
