//! Whole connections in memory: rustls is the client.

use super::*;
use crate::files::{certificates, roots_of};
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, SupportedProtocolVersion, version};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

/// A folder with a root, other roots, and certificates from the first.
struct Folder {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A client's certificate and key.
struct Paper(Vec<rustls::pki_types::CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Folder {
    fn new() -> Folder {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { issuer: root(dir.path(), "root.crt"), dir };
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "localhost");
        folder.write("server", params);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, params: CertificateParams) {
        let key = KeyPair::generate().unwrap();
        std::fs::write(
            self.path(&format!("{name}.crt")),
            params.signed_by(&key, &self.issuer).unwrap().pem(),
        )
        .unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn settings(&self, words: &[(&str, &str)]) -> Result<Settings, String> {
        let file = |name: &str| self.path(name).display().to_string();
        Settings::of(|name| match words.iter().find(|(other, _)| *other == name) {
            Some((_, value)) => value.replace("{dir}", &self.dir.path().display().to_string()),
            None => match name {
                "tls-cert-file" => file("server.crt"),
                "tls-key-file" => file("server.key"),
                "tls-ca-cert-file" => file("root.crt"),
                "tls-session-caching" => "yes".to_owned(),
                "tls-session-cache-size" => "3".to_owned(),
                "tls-session-cache-timeout" => "300".to_owned(),
                _ => String::new(),
            },
        })
    }

    fn load(&self, words: &[(&str, &str)]) -> Result<Loaded, String> {
        Loaded::read(&self.settings(words)?)
    }

    fn keeper(&self, words: &[(&str, &str)]) -> Keeper {
        Keeper::new(self.load(words).unwrap())
    }

    /// A certificate of a client, with this common name and these URIs.
    fn paper(&self, change: impl Fn(&mut CertificateParams)) -> Paper {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        change(&mut params);
        paper(params, &self.issuer)
    }
}

fn paper(params: CertificateParams, issuer: &Issuer<'static, KeyPair>) -> Paper {
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, issuer).unwrap();
    Paper(vec![cert.der().clone()], PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap())
}

fn root(folder: &Path, name: &str) -> Issuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(folder.join(name), params.self_signed(&key).unwrap().pem()).unwrap();
    Issuer::new(params, key)
}

fn named(name: &str) -> impl Fn(&mut CertificateParams) + '_ {
    move |params| params.distinguished_name.push(DnType::CommonName, name)
}

fn client_config(
    folder: &Folder,
    paper: Option<&Paper>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let roots = roots_of(&certificates(&folder.path("root.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match paper {
        Some(Paper(chain, key)) => config.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// Both ends of a connection.
struct Pair {
    client: ClientConnection,
    session: Session,
    early: Vec<u8>,
    names: Vec<Vec<u8>>,
}

/// Shakes hands; the client's bytes come in pieces of this size, and `early` right behind.
fn connect(keeper: &Keeper, config: &Arc<ClientConfig>, piece: usize, early: &[u8]) -> Result<Pair, String> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(config.clone(), name).unwrap();
    client.writer().write_all(early).unwrap();
    let mut hands = keeper.greet(Inner::Resp).map_err(|e| e.to_string())?;
    for _ in 0..20 {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        for piece in sent.chunks(piece) {
            if let Err(e) = hands.take(piece) {
                let mut alert = Vec::new();
                hands.answer(&mut alert);
                assert!(!alert.is_empty(), "no alert for {e}");
                return Err(e.to_string());
            }
        }
        let mut answer = Vec::new();
        hands.answer(&mut answer);
        let mut rest = &answer[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().map_err(|e| format!("client: {e}"))?;
        }
        if hands.progress() == Progress::Done && !client.is_handshaking() && !client.wants_write() {
            let Greeted { session, early, names } = hands.finish().map_err(|e| e.to_string())?;
            return Ok(Pair { client, session, early, names });
        }
    }
    Err("it does not end".to_owned())
}

/// Opens all records of a piece.
fn open_all(session: &mut Session, sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), Failure> {
    let mut rest = sealed;
    while !rest.is_empty() {
        rest = &rest[session.open(rest, plain)?..];
    }
    Ok(())
}

impl Pair {
    /// The client says something, which arrives in pieces of this size.
    fn ask(&mut self, bytes: &[u8], piece: usize) -> Result<Vec<u8>, Failure> {
        let (mut plain, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let n = self.client.writer().write(rest).unwrap();
            rest = &rest[n..];
            let mut sent = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut sent).unwrap();
            }
            for piece in sent.chunks(piece) {
                open_all(&mut self.session, piece, &mut plain)?;
            }
        }
        Ok(plain)
    }

    /// The server says something; gives what the client hears, and whether that was all.
    fn answer(&mut self, sealed: &[u8]) -> (Vec<u8>, bool) {
        let (mut rest, mut heard, mut ended) = (sealed, Vec::new(), false);
        while !rest.is_empty() {
            if self.client.read_tls(&mut rest).unwrap() == 0 {
                break;
            }
            let state = self.client.process_new_packets().unwrap();
            let mut part = vec![0; state.plaintext_bytes_to_read()];
            self.client.reader().read_exact(&mut part).unwrap();
            heard.extend(part);
            ended |= state.peer_has_closed();
        }
        (heard, ended)
    }
}

#[test]
fn bytes_come_through_both_ways_in_whatever_pieces() {
    let folder = Folder::new();
    let keeper = folder.keeper(&[("tls-auth-clients", "no")]);
    let long: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    for versions in [&BOTH[..1], &BOTH[1..]] {
        for piece in [1, 7, 4096, 1 << 20] {
            let config = client_config(&folder, None, versions);
            let mut pair = connect(&keeper, &config, piece, b"PING\r\n").unwrap();
            assert_eq!((&pair.early[..], pair.names.len()), (&b"PING\r\n"[..], 0));
            assert!(!pair.session.has_to_send());
            let said = if piece == 1 { &long[..20_000] } else { &long };
            assert!(pair.ask(said, piece).unwrap() == said);
            let mut sealed = Vec::new();
            pair.session.seal(&long, &mut sealed);
            assert!(sealed.len() < long.len() + 2000);
            assert!(pair.answer(&sealed) == (long.clone(), false));
            // Farewells, each once.
            let mut last = Vec::new();
            pair.session.farewell(&mut last);
            assert_eq!(pair.answer(&last), (Vec::new(), true));
            let mut more = Vec::new();
            pair.session.farewell(&mut more);
            pair.session.seal(b"x", &mut more);
            assert!(more.is_empty() && pair.session.has_said_farewell() && !pair.session.has_ended());
            pair.client.send_close_notify();
            assert_eq!(pair.ask(b"never", 1).unwrap(), b"");
            assert!(pair.session.has_ended());
        }
    }
}

#[test]
fn what_is_no_record_fails_behind_what_came_before() {
    let folder = Folder::new();
    let keeper = folder.keeper(&[("tls-auth-clients", "no")]);
    let config = client_config(&folder, None, BOTH);
    let mut pair = connect(&keeper, &config, 4096, b"").unwrap();
    let mut sent = Vec::new();
    for text in [&b"PING\r\n"[..], b"LOST\r\n"] {
        pair.client.writer().write_all(text).unwrap();
        pair.client.write_tls(&mut sent).unwrap();
    }
    *sent.last_mut().unwrap() ^= 1;
    let mut plain = Vec::new();
    assert!(pair.session.open(&sent, &mut plain).is_err());
    assert_eq!(plain, b"PING\r\n");
    assert!(pair.session.has_to_send());
    // No bytes of a handshake make it panic, nor hold more than a record.
    for first in 0..=255u8 {
        let mut hands = keeper.greet(Inner::Resp).unwrap();
        let bytes: Vec<u8> = (0..2000u32).map(|i| (i * i) as u8 ^ first).collect();
        let _ = hands.take(&[first, 3, 1, 2, 0]).and_then(|_| hands.take(&bytes));
    }
    assert!(keeper.greet(Inner::Resp).unwrap().take(b"PING\r\n").is_err());
}

/// Streams of records that are cut anywhere, damaged, repeated or shortened: what is heard is a prefix of
/// what was said, and all of it if nothing was changed.
#[test]
fn whatever_becomes_of_records_no_wrong_byte_is_heard() {
    let folder = Folder::new();
    let keeper = folder.keeper(&[("tls-auth-clients", "no")]);
    let mut state = 7u64;
    let mut dice = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for versions in [&BOTH[..1], &BOTH[1..]] {
        let config = client_config(&folder, None, versions);
        for round in 0..60 {
            let mut pair = connect(&keeper, &config, 4096, b"").unwrap();
            let (mut said, mut sent) = (Vec::new(), Vec::new());
            for _ in 0..1 + dice(5) {
                let text: Vec<u8> = (0..dice(20_000)).map(|i| (i * 7) as u8).collect();
                pair.client.writer().write_all(&text).unwrap();
                while pair.client.wants_write() {
                    pair.client.write_tls(&mut sent).unwrap();
                }
                said.extend(text);
            }
            let change = if sent.is_empty() { 0 } else { dice(5) };
            let at = dice(sent.len().max(1));
            match change {
                0 => {}
                1 => sent[at] ^= 1 << dice(8),
                2 => sent.truncate(at),
                3 => sent.extend_from_within(at..),
                _ => drop(sent.drain(at..at + 1)),
            }
            let (mut heard, mut rest, mut failed) = (Vec::new(), &sent[..], false);
            while !rest.is_empty() && !failed {
                let (piece, next) = rest.split_at((1 + dice(9000)).min(rest.len()));
                failed = open_all(&mut pair.session, piece, &mut heard).is_err();
                rest = next;
            }
            assert!(said.starts_with(&heard), "round {round}");
            assert!(change != 0 || !failed && heard == said, "round {round}");
            assert!(change != 1 || heard.len() < said.len(), "round {round}");
        }
    }
}

/// However small its records are, a client has only some of them opened at a time; all of them count.
#[test]
fn a_flood_of_small_records_is_opened_in_parts() {
    let folder = Folder::new();
    let keeper = folder.keeper(&[("tls-auth-clients", "no")]);
    for versions in [&BOTH[..1], &BOTH[1..]] {
        let mut pair = connect(&keeper, &client_config(&folder, None, versions), 4096, b"").unwrap();
        let (mut sent, mut said) = (Vec::new(), Vec::new());
        for i in 0..10 * RECORDS {
            let text = [i as u8; 3];
            pair.client.writer().write_all(&text).unwrap();
            // Requests for new keys, which cost more than bytes.
            if versions[0].version == rustls::ProtocolVersion::TLSv1_3 && i % 2 == 0 {
                pair.client.refresh_traffic_keys().unwrap();
            }
            while pair.client.wants_write() {
                pair.client.write_tls(&mut sent).unwrap();
            }
            said.extend(text);
        }
        let count = count_records(&sent);
        let (mut heard, mut rest, mut parts) = (Vec::new(), &sent[..], 0);
        while !rest.is_empty() {
            let taken = pair.session.open(rest, &mut heard).unwrap();
            assert!(count_records(&rest[..taken]) <= RECORDS && taken > 0);
            rest = &rest[taken..];
            parts += 1;
        }
        assert_eq!((heard == said, parts), (true, count.div_ceil(RECORDS)));
        // Answers to them do not pile up while nothing is sent.
        let mut out = Vec::new();
        pair.session.seal(b"", &mut out);
        assert!(count_records(&out) <= 1);
        // A farewell in the middle ends it, whatever comes behind.
        pair.client.send_close_notify();
        let mut last = Vec::new();
        pair.client.write_tls(&mut last).unwrap();
        last.extend_from_slice(&sent);
        assert_eq!(pair.session.open(&last, &mut heard).unwrap(), last.len());
        assert!(pair.session.has_ended() && heard == said);
    }
}

/// Only a limited number of requests for new keys is answered that come without any data.
#[test]
fn a_client_that_only_asks_for_new_keys_is_refused() {
    let folder = Folder::new();
    let keeper = folder.keeper(&[("tls-auth-clients", "no")]);
    let mut pair = connect(&keeper, &client_config(&folder, None, BOTH), 4096, b"").unwrap();
    let mut sent = Vec::new();
    for _ in 0..100 {
        pair.client.refresh_traffic_keys().unwrap();
        while pair.client.wants_write() {
            pair.client.write_tls(&mut sent).unwrap();
        }
    }
    let failed = open_all(&mut pair.session, &sent, &mut Vec::new()).unwrap_err();
    assert!(failed.to_string().contains("TooManyKeyUpdateRequests"), "{failed}");
}

fn count_records(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let [_, _, _, high, low, rest @ ..] = bytes {
        bytes = &rest[usize::from(u16::from_be_bytes([*high, *low]))..];
        count += 1;
    }
    count
}

#[test]
fn certificates_of_clients_are_asked_for_as_configured() {
    let folder = Folder::new();
    let good = folder.paper(named("alice"));
    let expired = folder.paper(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let early = folder.paper(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
    let stranger = paper(CertificateParams::new(Vec::new()).unwrap(), &root(folder.dir.path(), "other.crt"));
    let outcome = |words: &[(&str, &str)], paper: Option<&Paper>| {
        let config = client_config(&folder, paper, BOTH);
        connect(&folder.keeper(words), &config, 4096, b"").err().unwrap_or_default()
    };
    for word in ["", "yes", "optional", "no"] {
        let words = [("tls-auth-clients", word), ("tls-auth-clients-user", "cn")];
        assert_eq!(outcome(&words, Some(&good)), "");
        let without = outcome(&words, None);
        assert_eq!(without.contains("no certificates"), matches!(word, "" | "yes"), "{word}: {without}");
        for (paper, why) in [(&expired, "expired"), (&early, "valid"), (&stranger, "UnknownIssuer")] {
            let error = outcome(&words, Some(paper));
            assert_eq!(error.contains(why), word != "no", "{word} {why}: {error}");
        }
    }
    // Roots of a directory, in which other files may be.
    std::fs::create_dir(folder.path("roots")).unwrap();
    std::fs::write(folder.path("roots/notes"), "none").unwrap();
    std::fs::copy(folder.path("other.crt"), folder.path("roots/a.pem")).unwrap();
    let words = [("tls-ca-cert-file", ""), ("tls-ca-cert-dir", "{dir}/roots")];
    assert_eq!(outcome(&words, Some(&stranger)), "");
    assert!(outcome(&words, Some(&good)).contains("UnknownIssuer"));
    assert!(folder.load(&[("tls-ca-cert-file", "")]).err().unwrap().contains("tls-auth-clients no"));
}

#[test]
fn names_are_those_of_the_verified_certificate_and_whole() {
    let folder = Folder::new();
    let uri = |text: &str| SanType::URI(Ia5String::try_from(text).unwrap());
    let paper = folder.paper(|params| {
        params.distinguished_name.push(DnType::CommonName, "älice");
        params.subject_alt_names =
            vec![uri("urn:a"), SanType::DnsName("d".try_into().unwrap()), uri("urn:b")];
    });
    let found = |from: &str, paper: &Paper| {
        let words = [("tls-auth-clients", "optional"), ("tls-auth-clients-user", from)];
        let config = client_config(&folder, Some(paper), BOTH);
        connect(&folder.keeper(&words), &config, 4096, b"").map(|pair| pair.names)
    };
    assert_eq!(found("cn", &paper).unwrap(), ["älice".as_bytes()]);
    assert_eq!(found("uri", &paper).unwrap(), [b"urn:a", b"urn:b"]);
    assert!(found("off", &paper).unwrap().is_empty());
    assert!(found("cn", &folder.paper(|_| ())).is_ok());
    let nul = folder.paper(|params| {
        params.distinguished_name.push(DnType::CommonName, "default\0.example");
        params.subject_alt_names = vec![uri("urn:a"), uri("urn:\0")];
    });
    for from in ["cn", "uri"] {
        assert!(found(from, &nul).err().unwrap().contains("Nul"), "{from}");
    }
    assert!(found("off", &nul).is_ok());
}

#[test]
fn sessions_are_resumed_with_their_names_until_the_settings_change() {
    let folder = Folder::new();
    let paper = folder.paper(named("alice"));
    let words = [("tls-auth-clients-user", "cn")];
    let off = [("tls-session-caching", "no")];
    for versions in [&BOTH[..1], &BOTH[1..]] {
        let keeper = folder.keeper(&words);
        let config = client_config(&folder, Some(&paper), versions);
        let meet = |keeper: &Keeper| {
            let pair = connect(keeper, &config, 4096, b"").unwrap();
            (pair.client.handshake_kind().unwrap(), pair.names)
        };
        let alice = vec![b"alice".to_vec()];
        assert_eq!(meet(&keeper), (HandshakeKind::Full, alice.clone()));
        assert_eq!(meet(&keeper), (HandshakeKind::Resumed, alice.clone()));
        // The same files read again change nothing.
        assert!(!keeper.put(folder.load(&words).unwrap()));
        assert_eq!(meet(&keeper), (HandshakeKind::Resumed, alice.clone()));
        assert!(keeper.put(folder.load(&off).unwrap()));
        assert_eq!(meet(&keeper), (HandshakeKind::Full, Vec::new()));
        assert_eq!(meet(&keeper).0, HandshakeKind::Full);
    }
}

#[test]
fn new_files_serve_new_connections_and_leave_the_old_alone() {
    let folder = Folder::new();
    let keeper = folder.keeper(&[("tls-auth-clients", "no")]);
    let config = client_config(&folder, None, BOTH);
    let mut old = connect(&keeper, &config, 4096, b"").unwrap();
    let other = root(folder.dir.path(), "other.crt");
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &other).unwrap();
    std::fs::write(folder.path("server.crt"), cert.pem()).unwrap();
    // The old key does not fit the new certificate.
    let error = folder.load(&[("tls-auth-clients", "no")]).err().unwrap();
    assert!(error.starts_with("tls-cert-file and tls-key-file: "), "{error}");
    std::fs::write(folder.path("server.key"), key.serialize_pem()).unwrap();
    assert!(keeper.put(folder.load(&[("tls-auth-clients", "no")]).unwrap()));
    let fresh = client_config(&folder, None, BOTH);
    assert!(connect(&keeper, &fresh, 4096, b"").err().unwrap().contains("UnknownIssuer"));
    assert_eq!(old.ask(b"PING", 1).unwrap(), b"PING");
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let folder = Folder::new();
    std::fs::write(folder.path("empty"), "").unwrap();
    std::fs::write(folder.path("locked"), "-----BEGIN ENCRYPTED PRIVATE KEY-----\n").unwrap();
    for (name, value, words) in [
        ("tls-cert-file", "", "TLS needs tls-cert-file"),
        ("tls-key-file", "", "TLS needs tls-key-file"),
        ("tls-cert-file", "{dir}/none", "No such file or directory"),
        ("tls-cert-file", "{dir}", "it is no file"),
        ("tls-cert-file", "{dir}/empty", "empty: there is no certificate in it"),
        ("tls-key-file", "{dir}/empty", "empty: there is no key in it"),
        ("tls-key-file", "{dir}/locked", "the key has a password, and none is configured"),
        ("tls-ca-cert-file", "{dir}/empty", "tls-ca-cert-file"),
        ("tls-ca-cert-dir", "{dir}/none", "tls-ca-cert-dir"),
        ("tls-protocols", "TLSv1.1 TLSv1.2", "TLSv1.1 is unsafe"),
        ("tls-protocols", "TLSv2", "'TLSv2' is unknown"),
        (
            "tls-ciphers",
            "ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-SHA",
            "'DHE-RSA-AES256-SHA' does not exist",
        ),
        ("tls-ciphers", "DEFAULT:!MEDIUM", "Choose from ECDHE-"),
        ("tls-ciphersuites", "TLS_AES_128_CCM_SHA256", "Choose from TLS_AES_256_GCM_SHA384:"),
    ] {
        let error = folder.load(&[(name, value)]).err().unwrap_or_default();
        assert!(error.contains(words) && error.contains(name), "{name} {value}: {error}");
    }
    let one = [
        ("tls-auth-clients", "no"),
        ("tls-protocols", "TLSv1.3"),
        ("tls-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"),
    ];
    let keeper = folder.keeper(&one);
    assert!(connect(&keeper, &client_config(&folder, None, &BOTH[1..]), 4096, b"").is_err());
    let pair = connect(&keeper, &client_config(&folder, None, BOTH), 4096, b"").unwrap();
    let suite = pair.client.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
}

#[test]
fn the_dates_of_the_own_certificate_are_warned_of() {
    let folder = Folder::new();
    assert!(folder.load(&[]).unwrap().warnings().is_empty());
    for (from, to, words) in [(2000, 2020, "has expired"), (4000, 4001, "not valid yet")] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        folder.write("server", params);
        let warnings = folder.load(&[]).unwrap().warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(words), "{warnings:?}");
    }
}

/// Runs openssl in the folder; `{dir}` is not replaced.
fn openssl(folder: &Folder, words: &str) {
    let run = Command::new("openssl").current_dir(folder.dir.path()).args(words.split(' ')).output();
    let output = run.expect("openssl is needed");
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Keys that openssl locks, as it does by default and otherwise, open with their password alone.
#[test]
fn keys_with_a_password_are_opened() {
    let folder = Folder::new();
    let load = |file: &str, password: &str| {
        let file = format!("{{dir}}/{file}");
        let words = [("tls-key-file", &*file), ("tls-key-file-pass", password), ("tls-auth-clients", "no")];
        folder.load(&words).err().unwrap_or_default()
    };
    for (name, how) in [
        ("default", ""),
        ("aes", " -v2 aes-128-cbc -iter 100000"),
        ("sha512", " -v2prf hmacWithSHA512"),
        ("scrypt", " -scrypt"),
    ] {
        openssl(&folder, &format!("pkcs8 -topk8 -in server.key -out {name}.key -passout pass:secret{how}"));
        let file = format!("{name}.key");
        assert_eq!(load(&file, "secret"), "", "{name}");
        for (password, why) in
            [("", "the key has a password, and none is configured"), ("Secret", "is wrong")]
        {
            let error = load(&file, password);
            assert!(error.contains(why) && error.contains(&file), "{name} {password}: {error}");
            assert!(!error.contains("Secret"), "{error}");
        }
    }
    // A certificate may stand before the key, and blanks behind its lines.
    let text = [folder.path("server.crt"), folder.path("default.key")]
        .map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(folder.path("both.key"), text.concat().replace('\n', " \r\n")).unwrap();
    assert_eq!(load("both.key", "secret"), "");
    // A password that is not needed does no harm.
    assert_eq!(load("server.key", "secret"), "");
    openssl(&folder, "ec -in server.key -out old.key -aes256 -passout pass:secret");
    let old = load("old.key", "secret");
    assert!(old.contains("openssl pkcs8 -topk8"), "{old}");
    let cut = std::fs::read_to_string(folder.path("default.key")).unwrap();
    std::fs::write(folder.path("cut.key"), &cut[..cut.len() / 2]).unwrap();
    assert!(load("cut.key", "secret").contains("it is damaged"), "{}", load("cut.key", "secret"));
    openssl(&folder, "pkcs8 -topk8 -in server.key -out weak.key -passout pass:secret -v1 PBE-SHA1-3DES");
    openssl(&folder, "pkcs8 -topk8 -in server.key -out sha1.key -passout pass:secret -v2prf hmacWithSHA1");
    for name in ["weak.key", "sha1.key"] {
        let error = load(name, "secret");
        assert!(error.contains("unsupported way") && error.contains("openssl pkcs8 -topk8"), "{error}");
    }
    let settings = folder.settings(&[("tls-key-file-pass", "secret")]).unwrap();
    assert!(!format!("{settings:?}").contains("\"secret\""));
}

// ----- the client half ---------------------------------------------------------------------------------------

const LONG: Duration = Duration::from_secs(600);

/// Serves one connection, whose client hears what it says. Gives the client's names in the end.
fn serve(keeper: Keeper, mut socket: UnixStream) -> JoinHandle<Result<Vec<Vec<u8>>, String>> {
    std::thread::spawn(move || {
        let mut hands = keeper.greet(Inner::Resp).map_err(|e| e.to_string())?;
        let mut room = [0; 4096];
        while hands.progress() == Progress::More {
            let n = socket.read(&mut room).map_err(|e| e.to_string())?;
            let taken = hands.take(&room[..n]);
            let mut answer = Vec::new();
            hands.answer(&mut answer);
            // The client may be gone.
            let _ = socket.write_all(&answer);
            taken.map_err(|e| e.to_string())?;
            if n == 0 {
                return Err("the client went".to_owned());
            }
        }
        let Greeted { mut session, early: mut said, names } = hands.finish().map_err(|e| e.to_string())?;
        loop {
            let mut sealed = Vec::new();
            session.seal(&said, &mut sealed);
            said.clear();
            socket.write_all(&sealed).map_err(|e| e.to_string())?;
            match socket.read(&mut room).map_err(|e| e.to_string())? {
                0 => return Ok(names),
                n => open_all(&mut session, &room[..n], &mut said).map_err(|e| e.to_string())?,
            }
        }
    })
}

/// Talks with a server, and gives the names that it found, or the error of the client.
fn talk(keeper: Keeper, client: &Client, name: &str) -> Result<Vec<Vec<u8>>, String> {
    let (near, far) = UnixStream::pair().unwrap();
    let served = serve(keeper, far);
    let talked = client.wrap(&PeerName::of(name)?, near, LONG).and_then(|mut stream| {
        let mut heard = [0; 100_000];
        stream.write_all(&[7; 100_000])?;
        stream.flush()?;
        stream.read_exact(&mut heard)?;
        assert!(heard == [7; 100_000]);
        Ok(())
    });
    let served = served.join().unwrap();
    talked.map_err(|e| e.to_string())?;
    served
}

#[test]
fn a_client_talks_with_the_servers_that_it_trusts() {
    let folder = Folder::new();
    root(folder.dir.path(), "other.crt");
    let roots = |name: &str| roots_in(OptionFile::new("--roots", &folder.path(name))).unwrap();
    let client = |trust| Client::new(trust, None).unwrap();
    let words = [("tls-auth-clients", "no")];
    let outcome =
        |trust, name: &str| talk(folder.keeper(&words), &client(trust), name).err().unwrap_or_default();
    for (trust, name, why) in [
        (Trust::Name(roots("root.crt")), "localhost", ""),
        (Trust::Name(roots("root.crt")), "127.0.0.1", "not valid for name"),
        (Trust::Name(roots("root.crt")), "other.example", "not valid for name"),
        (Trust::AnyName(roots("root.crt")), "127.0.0.1", ""),
        (Trust::Name(roots("other.crt")), "localhost", "UnknownIssuer"),
        (Trust::AnyName(roots("other.crt")), "localhost", "UnknownIssuer"),
        (Trust::Anyone, "whatever", ""),
        (Trust::Anyone, "what ever", "'what ever' is not a server name"),
    ] {
        let error = outcome(trust.clone(), name);
        assert!(error.contains(why) && error.is_empty() == why.is_empty(), "{trust:?} {name}: {error}");
    }
    for (from, to, why) in [(2000, 2020, "expired"), (4000, 4001, "not valid yet")] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
        folder.write("server", params);
        for trust in [Trust::Name(roots("root.crt")), Trust::AnyName(roots("root.crt"))] {
            assert!(outcome(trust.clone(), "localhost").contains(why), "{}", outcome(trust, "localhost"));
        }
        assert_eq!(outcome(Trust::Anyone, "localhost"), "");
    }
}

#[test]
fn a_client_of_the_directives_shows_its_certificate() {
    let folder = Folder::new();
    for name in ["alice", "server"] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        folder.write(name, params);
    }
    openssl(&folder, "pkcs8 -topk8 -in alice.key -out locked.key -passout pass:secret");
    let client = |words: &[(&str, &str)]| {
        let of = |name: &str| {
            let usual = match name {
                "tls-ca-cert-file" => "{dir}/root.crt",
                "tls-cert-file" => "{dir}/server.crt",
                "tls-key-file" => "{dir}/server.key",
                _ => "",
            };
            let value = words.iter().find(|(other, _)| *other == name).map_or(usual, |(_, value)| value);
            value.replace("{dir}", &folder.dir.path().display().to_string())
        };
        Client::of(of)
    };
    let keeper = || folder.keeper(&[("tls-auth-clients-user", "cn")]);
    let alice = ("tls-client-cert-file", "{dir}/alice.crt");
    for (words, name) in [
        (&[][..], "server"),
        (&[alice, ("tls-client-key-file", "{dir}/alice.key")], "alice"),
        (
            &[alice, ("tls-client-key-file", "{dir}/locked.key"), ("tls-client-key-file-pass", "secret")],
            "alice",
        ),
        (&[("tls-protocols", "TLSv1.2")], "server"),
        (&[("tls-ca-cert-file", ""), ("tls-ca-cert-dir", "{dir}")], "server"),
    ] {
        // The name that is called does not matter.
        assert_eq!(
            talk(keeper(), &client(words).unwrap(), "127.0.0.1").unwrap(),
            [name.as_bytes()],
            "{words:?}"
        );
    }
    let bare = client(&[("tls-cert-file", "")]).unwrap();
    let refused = talk(keeper(), &bare, "localhost").err().unwrap();
    assert!(refused.contains("CertificateRequired"), "{refused}");
    for (words, why) in [
        (&[("tls-ca-cert-file", "")][..], "need tls-ca-cert-file or tls-ca-cert-dir"),
        (&[("tls-ca-cert-file", "{dir}/none")], "tls-ca-cert-file "),
        (&[alice], "tls-client-cert-file needs tls-client-key-file"),
        (&[alice, ("tls-client-key-file", "{dir}/server.key")], "tls-client-cert-file "),
        (&[alice, ("tls-client-key-file", "{dir}/locked.key")], "locked.key: the key has a password"),
        (&[("tls-ciphers", "NONE")], "tls-ciphers: 'NONE' does not exist"),
        (&[("tls-protocols", "TLSv1")], "tls-protocols: TLSv1 is unsafe"),
    ] {
        let error = client(words).err().unwrap_or_default();
        assert!(error.contains(why), "{words:?}: {error}");
    }
}

#[test]
fn a_client_does_not_wait_for_a_server_that_is_none() {
    let client = Client::new(Trust::Anyone, None).unwrap();
    let wrap = |answer: &[u8], limit: Duration| {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(answer).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        let error = client.wrap(&PeerName::of("localhost").unwrap(), near, limit).err().unwrap();
        (error.kind(), error.to_string())
    };
    assert_eq!(wrap(b"-ERR unknown command\r\n", LONG).0, ErrorKind::InvalidData);
    assert_eq!(wrap(b"", LONG), (ErrorKind::UnexpectedEof, "the server closed the connection".to_owned()));
    assert_eq!(wrap(&[22, 3, 3, 0], LONG).0, ErrorKind::UnexpectedEof);
    // CL3: not the reads are limited alone.
    assert_eq!(wrap(&[22, 3, 3, 0], Duration::ZERO).0, ErrorKind::TimedOut);
}
