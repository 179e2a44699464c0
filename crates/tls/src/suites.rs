//! Protocol versions and ciphers, by the names that OpenSSL gives them.
//!
//! A name that rustls does not have is refused: leaving it out could leave nothing that a client knows.

use rustls::crypto::{CryptoProvider, ring};
use rustls::{CipherSuite, SupportedProtocolVersion, version};

/// The ciphers of TLS 1.2.
const OLD: &[(&str, CipherSuite)] = &[
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];
/// The ciphers of TLS 1.3.
const NEW: &[(&str, CipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];

/// Both versions.
pub(crate) const BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

/// The cryptography with all ciphers.
pub(crate) fn all() -> CryptoProvider {
    ring::default_provider()
}

/// The cryptography with the configured ciphers, the preferred ones first. Errors: an unknown name.
pub(crate) fn provider(ciphers: &str, ciphersuites: &str) -> Result<CryptoProvider, String> {
    let mut provider = all();
    let new = chosen("tls-ciphersuites", ciphersuites, NEW)?;
    let old = chosen("tls-ciphers", ciphers, OLD)?;
    let known = std::mem::take(&mut provider.cipher_suites);
    let all = new.into_iter().chain(old);
    provider.cipher_suites =
        all.filter_map(|name| known.iter().find(|suite| suite.suite() == name).copied()).collect();
    Ok(provider)
}

/// The ciphers of a list with colons; all if it is empty.
fn chosen(directive: &str, list: &str, known: &[(&str, CipherSuite)]) -> Result<Vec<CipherSuite>, String> {
    let names: Vec<&str> = list.split([':', ',', ' ']).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return Ok(known.iter().map(|(_, suite)| *suite).collect());
    }
    let find = |name: &&str| {
        let found = known.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, suite)| *suite).ok_or_else(|| {
            let all: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            format!("{directive}: '{name}' does not exist here. Choose from {}", all.join(":"))
        })
    };
    names.iter().map(find).collect()
}

/// The configured versions; both if none is named. Errors: an unknown version.
pub(crate) fn versions(protocols: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let words: Vec<&str> = protocols.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    if words.is_empty() {
        return Ok(BOTH.to_vec());
    }
    let find = |word: &&str| match word.to_ascii_lowercase().as_str() {
        "tlsv1.2" => Ok(&version::TLS12),
        "tlsv1.3" => Ok(&version::TLS13),
        "tlsv1" | "tlsv1.0" | "tlsv1.1" | "sslv3" | "sslv2" => {
            Err(format!("tls-protocols: {word} is unsafe and does not exist here. Use TLSv1.2 and TLSv1.3"))
        }
        _ => Err(format!("tls-protocols: '{word}' is unknown. Choose from TLSv1.2 TLSv1.3")),
    };
    words.iter().map(find).collect()
}

/// The error that no cipher fits a version.
pub(crate) fn unfit(e: &rustls::Error) -> String {
    format!("tls-protocols, tls-ciphers and tls-ciphersuites do not fit together: {e}")
}
