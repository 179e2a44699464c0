//! TLS to PostgreSQL, with the words of libpq in the url: `sslmode`, `sslrootcert`, `sslcert`, `sslkey` and
//! `sslpassword`, the password of the key.
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
use crate::{Failure, files};
use percent_encoding::percent_decode_str;
use std::path::Path;
use tls::{Client, Identity, OptionFile, Secret, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The message that asks for TLS.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// TLS settings of a source's connections.
pub(super) struct Tls {
    pub mode: SslMode,
    client: Option<Client>,
}

/// The words about TLS in a url.
#[derive(Default)]
struct Words {
    mode: Option<String>,
    root: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    password: Option<String>,
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
                "sslpassword" => &mut words.password,
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

impl Words {
    /// Errors: a file that `source-dirs` does not admit.
    fn admit(&mut self) -> Result<(), String> {
        let root = Some(&mut self.root).filter(|root| root.as_deref() != Some("system"));
        let files =
            [("sslrootcert", root), ("sslcert", Some(&mut self.cert)), ("sslkey", Some(&mut self.key))];
        for (name, file) in files {
            let Some(file) = file.and_then(Option::as_mut) else { continue };
            let (path, is_bound) =
                files::admitted(Path::new(file)).map_err(|why| format!("url: {name}: {why}"))?;
            if is_bound {
                *file =
                    path.into_os_string().into_string().map_err(|_| format!("url: {name} is not text"))?;
            }
        }
        Ok(())
    }
}

impl Tls {
    /// Reads a url and the files it names; returns the rest of the url first. Errors: an unknown mode, files
    /// that are missing or wrong.
    pub fn of(url: &str) -> Result<(String, Tls), String> {
        let (url, mut words) = Words::split(url)?;
        words.admit()?;
        let roots = || match words.root.as_deref() {
            None | Some("system") => tls::system_roots("sslrootcert"),
            Some(file) => tls::roots_in(OptionFile::new("sslrootcert", Path::new(file))),
        };
        let roots = || roots().map_err(|e| format!("url: {e}"));
        let trust = match words.mode.as_deref().unwrap_or("prefer") {
            "disable" => return Ok((url, Tls { mode: SslMode::Disable, client: None })),
            "prefer" => Trust::Anyone,
            "require" if words.root.is_none() => Trust::Anyone,
            "require" | "verify-ca" => Trust::AnyName(roots()?),
            "verify-full" => Trust::Name(roots()?),
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
        let identity = match (&words.cert, &words.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => {
                let (cert, key) = (Path::new(cert), Path::new(key));
                let (cert, key) = (OptionFile::new("sslcert", cert), OptionFile::new("sslkey", key));
                let password = Secret::new(words.password.unwrap_or_default());
                Some(Identity::read(cert, key, &password).map_err(|e| format!("url: {e}"))?)
            }
            _ => return Err("url: sslcert and sslkey go together".into()),
        };
        let client = Client::new(trust, identity).map_err(|e| format!("url: {e}"))?;
        Ok((url, Tls { mode, client: Some(client) }))
    }

    /// For connections of the driver; None: without TLS.
    pub fn connector(&self) -> Option<MakeRustlsConnect> {
        self.client.as_ref().map(|client| MakeRustlsConnect::new((*client.config()).clone()))
    }

    /// Begins TLS on a fresh connection, unless it is off or the server has none and `prefer` allows that.
    /// Errors: TLS is required and the server has none; a certificate is refused.
    pub async fn wrap(&self, mut stream: TcpStream, host: &str) -> Result<Box<dyn Stream>, Failure> {
        let Some(mut connector) = self.connector() else { return Ok(Box::new(stream)) };
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
        let Ok(connect) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut connector, host);
        let wrapped = connect.connect(stream).await;
        wrapped.map(|stream| Box::new(stream) as Box<dyn Stream>).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidInput => Failure::Refused(format!("'{host}' is not a server name")),
            _ => down(e),
        })
    }
}

#[cfg(test)]
mod tests;
