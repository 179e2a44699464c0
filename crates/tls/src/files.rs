//! Certificates and keys in files, and why one cannot be used.

use crate::names::validity;
use crate::{Settings, locked};
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Certificates to trust.
pub type Roots = Arc<RootCertStore>;

/// A file, and the option or directive that names it.
#[derive(Clone, Copy, Debug)]
pub struct OptionFile<'a> {
    option: &'a str,
    pub(crate) path: &'a Path,
}

impl<'a> OptionFile<'a> {
    pub fn new(option: &'a str, path: &'a Path) -> OptionFile<'a> {
        OptionFile { option, path }
    }

    /// A sentence about what is wrong with it.
    pub(crate) fn wrong(&self, why: &str) -> String {
        format!("{self}: {why}")
    }
}

impl fmt::Display for OptionFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.option, self.path.display())
    }
}

/// A password. It is shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Files of a directory that are looked at, and the longest file of one.
const FILES_MAX: usize = 4096;
const FILE_BYTES: u64 = 4 << 20;
/// Days before the end of a certificate from which on its end is told.
const DAYS: u64 = 14;

/// The contents of the files. Equal values are the same certificates.
pub(crate) struct Files {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The certificates to trust, in the order of the files.
    trusted: Vec<CertificateDer<'static>>,
    roots: Option<Roots>,
}

impl PartialEq for Files {
    fn eq(&self, other: &Files) -> bool {
        self.chain == other.chain && self.key == other.key && self.trusted == other.trusted
    }
}

impl Files {
    pub(crate) fn read(settings: &Settings) -> Result<Files, String> {
        let cert = OptionFile::new("tls-cert-file", &settings.cert_file);
        let chain = certificates(cert.path).map_err(|e| cert.wrong(&e))?;
        let file = OptionFile::new("tls-key-file", &settings.key_file);
        let key = key(file.path, &settings.key_password).map_err(|e| file.wrong(&e))?;
        let trusted = trusted(settings.ca_file.as_deref(), settings.ca_dir.as_deref())?;
        let roots = match trusted.is_empty() {
            true => None,
            false => Some(roots_of(&trusted).map_err(|e| format!("tls-ca-cert-file: {e}"))?),
        };
        Ok(Files { chain, key, trusted, roots })
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    pub(crate) fn roots(&self) -> Option<Roots> {
        self.roots.clone()
    }

    /// Certificates that are not valid now, or not for long.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let Some((from, to)) = self.chain.first().and_then(validity) else {
            return vec!["the dates of the certificate in tls-cert-file cannot be read".to_owned()];
        };
        let text = match (from > now, to.saturating_sub(now) / 86_400) {
            (true, _) => "the certificate in tls-cert-file is not valid yet".to_owned(),
            (_, 0) if to <= now => "the certificate in tls-cert-file has expired".to_owned(),
            (_, days) if days < DAYS => format!("the certificate in tls-cert-file ends in {days} days"),
            _ => return Vec::new(),
        };
        vec![text]
    }
}

/// The certificates of `tls-ca-cert-file` and `tls-ca-cert-dir`, in their order. Errors: a sentence that names
/// the directive.
pub(crate) fn trusted(
    file: Option<&Path>,
    dir: Option<&Path>,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut found = Vec::new();
    if let Some(file) = file.map(|file| OptionFile::new("tls-ca-cert-file", file)) {
        found.extend(certificates(file.path).map_err(|e| file.wrong(&e))?);
    }
    if let Some(dir) = dir.map(|dir| OptionFile::new("tls-ca-cert-dir", dir)) {
        found.extend(all_in(dir.path).map_err(|e| dir.wrong(&e))?);
    }
    Ok(found)
}

/// The certificates of a file in the PEM form. Errors: it cannot be read, or there is none in it.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is no certificate in it".to_owned()),
        Ok(found) => Ok(found),
        Err(e) => Err(e.to_string()),
    }
}

/// The key of a file in the PEM form; `password` is its own, and empty if it has none. Errors: it cannot be
/// read, the password is missing or wrong, or there is none in it.
pub(crate) fn key(file: &Path, password: &Secret) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = read(file)?;
    if let Some(opened) = locked::open(&String::from_utf8_lossy(&bytes), password) {
        return opened;
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        pem::Error::NoItemsFound => "there is no key in it".to_owned(),
        e => e.to_string(),
    })
}

/// Errors: a certificate cannot be trusted, for example because it is of version 1.
pub(crate) fn roots_of(trusted: &[CertificateDer<'static>]) -> Result<Roots, String> {
    let mut roots = RootCertStore::empty();
    for root in trusted {
        roots.add(root.clone()).map_err(|e| e.to_string())?;
    }
    Ok(Arc::new(roots))
}

/// The certificates that the system trusts; None: there are none.
pub(crate) fn roots_of_system() -> Option<Roots> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    (!roots.is_empty()).then(|| Arc::new(roots))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let told = |e: std::io::Error| {
        let text = e.to_string();
        text.split(" (os error").next().unwrap_or(&text).to_owned()
    };
    let about = std::fs::metadata(file).map_err(told)?;
    if !about.is_file() {
        return Err("it is no file".to_owned());
    }
    if about.len() > FILE_BYTES {
        return Err(format!("it is longer than {FILE_BYTES} bytes"));
    }
    std::fs::read(file).map_err(told)
}

/// The certificates of all files in a directory, each once. Files without any are passed over.
fn all_in(dir: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let entries = std::fs::read_dir(dir).map_err(|e| e.to_string())?;
    let mut paths: Vec<_> = entries.take(FILES_MAX).filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let mut found: Vec<CertificateDer<'static>> = Vec::new();
    for cert in paths.iter().filter_map(|path| certificates(path).ok()).flatten() {
        // A link by its hash names the same certificate again.
        if !found.contains(&cert) {
            found.push(cert);
        }
    }
    match found.is_empty() {
        true => Err("there is no certificate in any of its files".to_owned()),
        false => Ok(found),
    }
}
