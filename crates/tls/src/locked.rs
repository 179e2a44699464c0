//! Keys with a password, in the form of PKCS #8 (`BEGIN ENCRYPTED PRIVATE KEY`), which openssl writes since its
//! version 1.0. The older form is refused: it protects the key by one round of MD5.
//!
//! Cost: as many rounds of a hash as the file asks for, some milliseconds by openssl's default.

use crate::files::Secret;
use pkcs8::der::SecretDocument;
use pkcs8::{EncryptedPrivateKeyInfoRef, Error, pkcs5};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

const BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
/// The header of the older form.
const OLD: &str = "Proc-Type: 4,ENCRYPTED";

/// Opens the first locked key of a file. None: there is none in it. Errors: the password is missing or wrong,
/// or the form is not supported.
pub(crate) fn open(text: &str, password: &Secret) -> Option<Result<PrivateKeyDer<'static>, String>> {
    if let Some(from) = text.find(BEGIN) {
        let len = text[from..].find(END).map_or(text.len() - from, |at| at + END.len());
        return Some(decrypt(&text[from..from + len], password));
    }
    text.contains(OLD).then(|| {
        Err("the password of this key has an old, weak form: write the key anew by 'openssl pkcs8 -topk8 -in FILE \
             -out NEW'"
            .to_owned())
    })
}

fn decrypt(block: &str, password: &Secret) -> Result<PrivateKeyDer<'static>, String> {
    if password.is_empty() {
        return Err("the key has a password, and none is configured".to_owned());
    }
    // Blanks at the ends of lines are no mistake of the user's.
    let lines: Vec<&str> = block.lines().map(str::trim).collect();
    let (_, sealed) =
        SecretDocument::from_pem(&lines.join("\n")).map_err(|e| format!("it is damaged: {e}"))?;
    let unknown = |e: Error| {
        format!(
            "the key is locked in an unsupported way ({e}): write it anew by 'openssl pkcs8 -topk8 -in FILE -out NEW'"
        )
    };
    let sealed = EncryptedPrivateKeyInfoRef::try_from(sealed.as_bytes()).map_err(unknown)?;
    match sealed.decrypt(password.bytes()) {
        Ok(key) => Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into()),
        // A wrong password seldom leaves something that looks right at first.
        Err(Error::EncryptedPrivateKey(pkcs5::Error::DecryptFailed) | Error::Asn1(_)) => {
            Err("the password is wrong".to_owned())
        }
        Err(e) => Err(unknown(e)),
    }
}
