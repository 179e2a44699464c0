//! The directives about TLS, as one value.

use crate::files::Secret;
use std::path::PathBuf;

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCerts {
    No,
    Optional,
    Required,
}

/// The part of a client's certificate that names its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFrom {
    Nothing,
    CommonName,
    /// The URIs among the alternative names.
    Uri,
}

/// The configuration of TLS. Two equal values read the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub key_password: Secret,
    pub ca_file: Option<PathBuf>,
    pub ca_dir: Option<PathBuf>,
    pub client_certs: ClientCerts,
    /// None: as `client_certs`.
    pub http_client_certs: Option<ClientCerts>,
    pub name_from: NameFrom,
    pub protocols: String,
    pub ciphers: String,
    pub ciphersuites: String,
    pub prefer_server_ciphers: bool,
    pub session_caching: bool,
    /// Sessions to remember.
    pub session_cache: usize,
    pub session_cache_s: u32,
}

/// Sessions that are remembered if `tls-session-cache-size` is 0.
const SESSIONS: usize = 20_480;

impl Settings {
    /// Makes settings of the values of directives, by name. Errors: one is missing or unknown.
    pub fn of(value: impl Fn(&str) -> String) -> Result<Settings, String> {
        let path = |name: &str| Some(value(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let needed = |name: &str| path(name).ok_or(format!("TLS needs {name}"));
        let count = |name: &str| value(name).parse::<u32>().map_err(|_| format!("{name} is no number"));
        Ok(Settings {
            cert_file: needed("tls-cert-file")?,
            key_file: needed("tls-key-file")?,
            key_password: Secret::new(value("tls-key-file-pass")),
            ca_file: path("tls-ca-cert-file"),
            ca_dir: path("tls-ca-cert-dir"),
            client_certs: client_certs(&value("tls-auth-clients")).unwrap_or(ClientCerts::Required),
            http_client_certs: client_certs(&value("http-tls-auth-clients")),
            name_from: match value("tls-auth-clients-user").as_str() {
                "cn" => NameFrom::CommonName,
                "uri" => NameFrom::Uri,
                _ => NameFrom::Nothing,
            },
            protocols: value("tls-protocols"),
            ciphers: value("tls-ciphers"),
            ciphersuites: value("tls-ciphersuites"),
            prefer_server_ciphers: value("tls-prefer-server-ciphers") == "yes",
            session_caching: value("tls-session-caching") == "yes",
            session_cache: match count("tls-session-cache-size")? as usize {
                0 => SESSIONS,
                size => size,
            },
            session_cache_s: count("tls-session-cache-timeout")?,
        })
    }
}

fn client_certs(word: &str) -> Option<ClientCerts> {
    match word {
        "no" => Some(ClientCerts::No),
        "optional" => Some(ClientCerts::Optional),
        "yes" => Some(ClientCerts::Required),
        _ => None,
    }
}
