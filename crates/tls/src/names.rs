//! The names in a client's certificate.
//!
//! - NA1: only the names of a verified certificate are looked at.
//! - NA2: a certificate from which no name can be read safely is refused, while names are wanted. A zero byte
//!   would end the name for others before its end for us.

use crate::NameFrom;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
};
use std::fmt;
use std::sync::Arc;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ALTERNATIVE_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

/// Why no name was taken from a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameError {
    /// The certificate cannot be read.
    Unreadable,
    /// A name has a zero byte.
    Nul,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameError::Unreadable => "the names of the certificate cannot be read",
            NameError::Nul => "a name in the certificate has a zero byte",
        })
    }
}

impl std::error::Error for NameError {}

/// The names that may be a user's, in their order; none: it has no such name. Errors: NA2.
pub(crate) fn names(cert: &CertificateDer<'_>, from: NameFrom) -> Result<Vec<Vec<u8>>, NameError> {
    if from == NameFrom::Nothing {
        return Ok(Vec::new());
    }
    let cert = Certificate::from_der(cert).map_err(|_| NameError::Unreadable)?;
    let names = match from {
        NameFrom::CommonName => common_name(&cert)?.into_iter().collect(),
        _ => uris(&cert)?,
    };
    match names.iter().any(|name| name.contains(&0)) {
        true => Err(NameError::Nul),
        false => Ok(names),
    }
}

/// The first common name, as UTF-8.
fn common_name(cert: &Certificate) -> Result<Option<Vec<u8>>, NameError> {
    let mut parts = cert.tbs_certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let Some(part) = parts.find(|part| part.oid == COMMON_NAME) else { return Ok(None) };
    let bytes = part.value.value();
    let name = match part.value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString => bytes.to_vec(),
        // Latin-1, as is usual for this type.
        Tag::TeletexString => bytes.iter().map(|byte| char::from(*byte)).collect::<String>().into_bytes(),
        Tag::BmpString => {
            let units: Vec<u16> = bytes
                .chunks(2)
                .map(|pair| pair.iter().fold(0, |unit, byte| unit << 8 | u16::from(*byte)))
                .collect();
            String::from_utf16(&units).map_err(|_| NameError::Unreadable)?.into_bytes()
        }
        _ => return Err(NameError::Unreadable),
    };
    Ok(Some(name))
}

/// The URIs among the alternative names.
fn uris(cert: &Certificate) -> Result<Vec<Vec<u8>>, NameError> {
    let mut found = Vec::new();
    let extensions = cert.tbs_certificate.extensions.iter().flatten();
    for extension in extensions.filter(|extension| extension.extn_id == ALTERNATIVE_NAME) {
        let names = SubjectAltName::from_der(extension.extn_value.as_bytes());
        for name in names.map_err(|_| NameError::Unreadable)?.0 {
            if let GeneralName::UniformResourceIdentifier(uri) = name {
                found.push(uri.as_bytes().to_vec());
            }
        }
    }
    Ok(found)
}

/// When a certificate begins and ends to be valid, in seconds since 1970; None: it cannot be read.
pub(crate) fn validity(cert: &CertificateDer<'_>) -> Option<(u64, u64)> {
    let validity = Certificate::from_der(cert).ok()?.tbs_certificate.validity;
    let seconds = |time: x509_cert::time::Time| time.to_unix_duration().as_secs();
    Some((seconds(validity.not_before), seconds(validity.not_after)))
}

/// A verifier that also refuses certificates without a safe name (NA2).
#[derive(Debug)]
pub(crate) struct Named {
    inner: Arc<dyn ClientCertVerifier>,
    from: NameFrom,
}

impl Named {
    pub(crate) fn new(inner: Arc<dyn ClientCertVerifier>, from: NameFrom) -> Named {
        Named { inner, from }
    }
}

impl ClientCertVerifier for Named {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(cert, chain, now)?; // NA1
        match names(cert, self.from) {
            Ok(_) => Ok(verified),
            Err(e) => Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(e))))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
