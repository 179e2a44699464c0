//! TLS of the server's connections: what is configured, the certificates in force, and the records of one
//! connection; and of connections to other servers (`client.rs`). No sockets, no threads.
//!
//! ```text
//! Settings ──files──► Loaded ──put──► Keeper ──greet──► Handshake ──take, answer──► Session
//! (words)             (certificate, roots, keys of tickets)       └─ a byte at a time, if it must be
//!
//! Session:  received records ──open──► plaintext          plaintext ──seal──► records to send
//! ```
//!
//! - T1: a [`Keeper`] always holds settings whose files were read and fit together. Settings that do not are
//!   refused with a sentence, and the old ones stay in force.
//! - T2: a connection keeps what it began with. New files serve new connections.
//! - T3: a connection holds at most one incomplete record of its peer (18 KB), and a few KB when it is idle.
//! - T4: sessions are resumed only under the settings they began with: with each change of them the keys of
//!   tickets and the cache begin anew. They hold the names of the client's certificate.
//! - T5: a name in a certificate is compared whole. One with a zero byte refuses its connection.
//!
//! Cost: a handshake is a few operations with the key, which costs least on an elliptic curve. A resumed one
//! needs none. Records: O(bytes), and a fixed part each. `docs/measured.md` has figures.

#![forbid(unsafe_code)]

mod client;
mod files;
mod locked;
mod names;
mod resume;
mod session;
mod settings;
mod suites;

pub use client::{Client, Identity, PeerName, Trust, Wrapped, roots_in, system_roots};
pub use files::{OptionFile, Roots, Secret};
pub use session::{Failure, Greeted, Handshake, Progress, RECORDS, Session};
pub use settings::{ClientCerts, NameFrom, Settings};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::{
    NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier,
};
use std::sync::Arc;

/// The protocol spoken inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    Resp,
    Http,
}

/// Settings with the files they name.
pub struct Loaded {
    settings: Settings,
    files: files::Files,
    resp: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Loaded {
    /// Reads the files and checks that all fits together. Blocks. Errors: a sentence that names the
    /// directive.
    pub fn read(settings: &Settings) -> Result<Loaded, String> {
        let files = files::Files::read(settings)?;
        let resume = resume::Resume::new(settings)?;
        let config = |inner| config(settings, &files, &resume, inner).map(Arc::new);
        let (resp, http) = (config(Inner::Resp)?, config(Inner::Http)?);
        Ok(Loaded { settings: settings.clone(), files, resp, http })
    }

    /// Sentences for an administrator about what is no error.
    pub fn warnings(&self) -> Vec<String> {
        self.files.warnings()
    }
}

/// The settings in force. See the module.
pub struct Keeper(ArcSwap<Loaded>);

impl Keeper {
    pub fn new(loaded: Loaded) -> Keeper {
        Keeper(ArcSwap::from_pointee(loaded))
    }

    /// Puts settings into force for connections from now on (T2). False: nothing differs, so sessions stay
    /// resumable.
    pub fn put(&self, loaded: Loaded) -> bool {
        let old = self.0.load();
        let differs = old.settings != loaded.settings || old.files != loaded.files;
        if differs {
            self.0.store(Arc::new(loaded));
        }
        differs
    }

    /// Begins a connection. Errors: the system has no randomness.
    pub fn greet(&self, inner: Inner) -> Result<Handshake, Failure> {
        let loaded = self.0.load();
        let (config, from) = match inner {
            Inner::Resp => (&loaded.resp, loaded.settings.name_from),
            Inner::Http => (&loaded.http, NameFrom::Nothing),
        };
        Handshake::new(config.clone(), from)
    }
}

/// Builds the settings of one protocol.
fn config(
    settings: &Settings,
    files: &files::Files,
    resume: &resume::Resume,
    inner: Inner,
) -> Result<ServerConfig, String> {
    let provider = Arc::new(suites::provider(&settings.ciphers, &settings.ciphersuites)?);
    let (wanted, from) = match inner {
        Inner::Resp => (settings.client_certs, settings.name_from),
        Inner::Http => (settings.http_client_certs.unwrap_or(settings.client_certs), NameFrom::Nothing),
    };
    let verifier: Arc<dyn ClientCertVerifier> = match wanted {
        ClientCerts::No => Arc::new(NoClientAuth),
        wanted => {
            let roots = files.roots().ok_or(
                "tls-auth-clients asks for certificates of clients: name the certificates to trust by \
                 tls-ca-cert-file or tls-ca-cert-dir, or set tls-auth-clients no",
            )?;
            let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            let builder =
                if wanted == ClientCerts::Optional { builder.allow_unauthenticated() } else { builder };
            let verifier = builder.build().map_err(|e| format!("tls-ca-cert-file: {e}"))?;
            if from == NameFrom::Nothing { verifier } else { Arc::new(names::Named::new(verifier, from)) }
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&suites::versions(&settings.protocols)?)
        .map_err(|e| suites::unfit(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(files.chain(), files.key())
        .map_err(|e| format!("tls-cert-file and tls-key-file: {e}"))?;
    config.ignore_client_order = settings.prefer_server_ciphers;
    if inner == Inner::Http {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    match resume.of(inner) {
        Some((tickets, cache)) => (config.ticketer, config.session_storage) = (tickets, cache),
        None => {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests;
