//! TLS to a server, with redis-cli's options: `--tls`, `--cacert`, `--cert`, `--insecure`, `--sni`; its
//! `--key` is `--cert-key` here.
//!
//! Unlike in redis-cli, the certificate must also be for the host, or for the name given with `--sni`.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, StreamOwned,
};

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// Reads the files. `place`: `host:port`. Errors: files that are missing or wrong, a host that is no
    /// name.
    pub fn new(words: &Words, place: &str) -> Result<Tls, String> {
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
        let name = words.sni.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
        let name =
            ServerName::try_from(name.clone()).map_err(|_| format!("'{name}' is not a server name"))?;
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match words.insecure {
            true => Arc::new(Anyone(provider.clone())),
            false => verifier(words.cacert.as_deref(), &provider)?,
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match (&words.cert, &words.cert_key) {
            (Some(cert), Some(key)) => {
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| format!("--cert-key {}: {e}", key.display()))?;
                let wrong = |e| format!("--cert {}: {e}", cert.display());
                config
                    .with_client_auth_cert(certificates(cert).map_err(wrong)?, secret)
                    .map_err(|e| wrong(e.to_string()))?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(Tls { config: Arc::new(config), name })
    }

    /// Begins TLS on a fresh connection. Errors: the server has none, or its certificate is refused.
    pub fn wrap(&self, mut stream: TcpStream) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
        let mut session =
            ClientConnection::new(self.config.clone(), self.name.clone()).map_err(|e| e.to_string())?;
        while session.is_handshaking() {
            session.complete_io(&mut stream).map_err(|e| match e.kind() {
                io::ErrorKind::WouldBlock => "it does not answer; is that its port for TLS?".to_owned(),
                _ => e.to_string(),
            })?;
        }
        Ok(StreamOwned::new(session, stream))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found = found.map_err(|e| e.to_string())?;
    if found.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(found) }
}

/// Makes a verifier of certificates against those of a file, or the system's.
fn verifier(
    file: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            let wrong = |e: String| format!("--cacert {}: {e}", file.display());
            for root in certificates(file).map_err(wrong)? {
                roots.add(root).map_err(|e| wrong(e.to_string()))?;
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    if roots.is_empty() {
        return Err("the system has no root certificates: name some by --cacert".to_owned());
    }
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    built.map_err(|e| e.to_string())
}

/// A verifier that takes any certificate: the connection is encrypted, but the peer is unknown.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _cert: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
