//! TLS to PostgreSQL, with the words of libpq in the url: `sslmode`, `sslrootcert`, `sslcert` and `sslkey`.
//! <https://www.postgresql.org/docs/current/libpq-ssl.html>
//!
//! | sslmode | TLS | the server's certificate |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer`, the default | if the server has it | not checked |
//! | `require` | yes | not checked; with `sslrootcert` as `verify-ca` |
//! | `verify-ca` | yes | comes from one of the roots |
//! | `verify-full` | yes | comes from one of the roots, and is for the host of the url |
//!
//! Roots are the certificates in the file `sslrootcert`, or the system's if that is missing or `system`. Over
//! a unix socket there is no TLS, as in libpq.

use super::link::Stream;
use crate::Failure;
use percent_encoding::percent_decode_str;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// The message that asks for TLS.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// TLS settings of a source's connections.
pub(super) struct Tls {
    pub mode: SslMode,
    config: Option<Arc<ClientConfig>>,
}

/// The words about TLS in a url.
#[derive(Default)]
struct Words {
    mode: Option<String>,
    root: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Words {
    /// Takes the words out of a url; returns the rest of it first.
    fn split(url: &str) -> Result<(String, Words), String> {
        let mut words = Words::default();
        let Some((left, query)) = url.split_once('?') else { return Ok((url.to_owned(), words)) };
        let mut others = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "sslmode" => &mut words.mode,
                "sslrootcert" => &mut words.root,
                "sslcert" => &mut words.cert,
                "sslkey" => &mut words.key,
                _ => {
                    others.push(pair);
                    continue;
                }
            };
            let value = percent_decode_str(value).decode_utf8();
            *place = Some(value.map_err(|_| format!("url: {name} is not text"))?.into_owned());
        }
        let left = if others.is_empty() { left.to_owned() } else { format!("{left}?{}", others.join("&")) };
        Ok((left, words))
    }
}

impl Tls {
    /// Reads a url and the files it names; returns the rest of the url first. Errors: an unknown mode, files
    /// that are missing or wrong.
    pub fn of(url: &str) -> Result<(String, Tls), String> {
        let (url, words) = Words::split(url)?;
        let provider = Arc::new(crypto::ring::default_provider());
        let file = words.root.as_deref().filter(|file| *file != "system");
        let lenient = |roots| Arc::new(Lenient { roots, provider: provider.clone() });
        let verifier: Arc<dyn ServerCertVerifier> = match words.mode.as_deref().unwrap_or("prefer") {
            "disable" => return Ok((url, Tls { mode: SslMode::Disable, config: None })),
            "prefer" => lenient(None),
            "require" if words.root.is_none() => lenient(None),
            "require" | "verify-ca" => lenient(Some(verifier(file, &provider)?)),
            "verify-full" => verifier(file, &provider)?,
            mode => {
                return Err(format!(
                    "url: sslmode '{mode}' is none of disable, prefer, require, verify-ca, verify-full"
                ));
            }
        };
        let mode = if words.mode.as_deref().unwrap_or("prefer") == "prefer" {
            SslMode::Prefer
        } else {
            SslMode::Require
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match (&words.cert, &words.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let certs = certificates(cert).map_err(|e| format!("url: sslcert {cert}: {e}"))?;
                let secret =
                    PrivateKeyDer::from_pem_file(key).map_err(|e| format!("url: sslkey {key}: {e}"))?;
                config
                    .with_client_auth_cert(certs, secret)
                    .map_err(|e| format!("url: sslcert {cert}: {e}"))?
            }
            _ => return Err("url: sslcert and sslkey go together".into()),
        };
        Ok((url, Tls { mode, config: Some(Arc::new(config)) }))
    }

    /// For connections of the driver; None: without TLS.
    pub fn connector(&self) -> Option<MakeRustlsConnect> {
        self.config.as_ref().map(|config| MakeRustlsConnect::new((**config).clone()))
    }

    /// Begins TLS on a fresh connection, unless it is off or the server has none and `prefer` allows that.
    /// Errors: TLS is required and the server has none; a certificate is refused.
    pub async fn wrap(&self, mut stream: TcpStream, host: &str) -> Result<Box<dyn Stream>, Failure> {
        let Some(config) = &self.config else { return Ok(Box::new(stream)) };
        let down = |e: std::io::Error| match format!("TLS: {e}") {
            text if text.contains("certificate") => Failure::Refused(text),
            text => Failure::Down(text),
        };
        stream.write_all(&REQUEST).await.map_err(down)?;
        // Reads one byte and no more: further bytes would not be encrypted.
        match stream.read_u8().await.map_err(down)? {
            b'S' => {}
            b'N' if self.mode == SslMode::Prefer => return Ok(Box::new(stream)),
            b'N' => return Err(Failure::Refused("the database does not support TLS".into())),
            _ => return Err(Failure::Down("the database sent an unexpected message".into())),
        }
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| Failure::Refused(format!("'{host}' is not a server name")))?;
        let wrapped = TlsConnector::from(config.clone()).connect(name, stream).await;
        wrapped.map(|stream| Box::new(stream) as Box<dyn Stream>).map_err(down)
    }
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found = found.map_err(|e| e.to_string())?;
    if found.is_empty() { Err("there is no certificate in it".into()) } else { Ok(found) }
}

/// Makes a verifier of certificates against those of a file, or the system's.
fn verifier(file: Option<&str>, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            for root in certificates(file).map_err(|e| format!("url: sslrootcert {file}: {e}"))? {
                roots.add(root).map_err(|e| format!("url: sslrootcert {file}: {e}"))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("the system has no root certificates: name them by sslrootcert in the url".into());
            }
        }
    }
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    built.map_err(|e| e.to_string())
}

/// A verifier that accepts more than a matching name and chain.
#[derive(Debug)]
struct Lenient {
    /// Certificates must come from these roots, whatever name they are for. None: any certificate is
    /// accepted; the connection is encrypted, but the peer is unknown.
    roots: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
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
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(
            message,
            cert,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(
            message,
            cert,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
