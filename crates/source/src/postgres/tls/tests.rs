use super::*;
use crate::testing::*;
use crate::{Database, Spec};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use std::sync::Arc;
use support::postgres::Server;

/// An authority that signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Makes a certificate and its key.
    fn sign(&self, host: &str, name: &str) -> (String, String) {
        self.sign_until(host, name, 4096)
    }

    /// Makes a certificate that is valid until a year.
    fn sign_until(&self, host: &str, name: &str, year: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec![host.into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Starts a server with TLS, a certificate for localhost and a table of one row. `access`: its lines of
/// `pg_hba.conf`.
fn secure(authority: &Authority, access: &str) -> Server {
    secure_until(authority, access, 4096)
}

/// As [`secure`], with a certificate that is valid until a year.
fn secure_until(authority: &Authority, access: &str, year: i32) -> Server {
    let server = Server::start();
    server.sql("CREATE TABLE items (id int PRIMARY KEY, v int); INSERT INTO items VALUES (1, 10)").unwrap();
    let (cert, key) = authority.sign_until("localhost", "a server", year);
    let file = |name: &str, text: &str| server.write(name, text).display().to_string();
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", file("server.crt", &cert)),
        format!("ssl_key_file={}", file("server.key", &key)),
        format!("ssl_ca_file={}", file("root.crt", &authority.pem)),
        format!("hba_file={}", file("access", access)),
    ];
    server.stop(Signal::INT);
    server.run_with(&settings.each_ref().map(String::as_str));
    server
}

fn open(server: &Server, host: &str, query: &str) -> Arc<dyn Database> {
    let url = format!("postgres://postgres@{host}:{}/postgres?{query}", server.port);
    let text = format!("items i:{{id}} {url} timeout 60s connect-timeout 60s");
    crate::open(&Spec::parse(text.split(' ')).unwrap()).unwrap()
}

/// Loads a row and follows the feed; returns whether these connections are encrypted.
async fn is_encrypted(server: &Server, database: &Arc<dyn Database>) -> [String; 2] {
    assert_eq!(load(database, &["1"]).await.len(), 1);
    let feed = Arc::new(Recorder::default());
    let _following = Following::start(database, &feed);
    feed.until_opened().await;
    ["evenkeel", "evenkeel feed"].map(|name| {
        let asked = server.sql(&format!(
            "SELECT string_agg(DISTINCT ssl::text, ',') FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
             WHERE application_name = '{name}'"
        ));
        asked.unwrap()
    })
}

/// Why neither a row nor the feed is given.
async fn refusals(database: &Arc<dyn Database>) -> [String; 2] {
    let load = database.load(&ids(&["1"])).await.unwrap_err().to_string();
    let feed = database.follow(&Recorder::default()).await.to_string();
    [load, feed]
}

const ANYBODY: &str = "local all all trust\nhost all all 127.0.0.1/32 trust\nhost all all ::1/128 trust\n";

#[tokio::test(flavor = "multi_thread")]
async fn sslmode_says_whether_and_with_whom() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = secure(&authority, ANYBODY);
    let root = server.write("root.pem", &authority.pem).display().to_string();
    let wrong = server.write("wrong.pem", &other.pem).display().to_string();
    for (host, query, encrypted) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={root}"), "true"),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={root}"), "true"),
        ("127.0.0.1", format!("sslmode=require&sslrootcert={root}"), "true"),
        ("127.0.0.1", "sslmode=require".into(), "true"),
        ("127.0.0.1", String::new(), "true"),
        ("127.0.0.1", "sslmode=disable".into(), "false"),
    ] {
        let database = open(&server, host, &query);
        assert_eq!(is_encrypted(&server, &database).await, [encrypted; 2], "{host} {query}");
        drop(database);
        let gone = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'evenkeel%'";
        while server.sql(gone).unwrap() != "0" {}
    }
    for (host, query, why) in [
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={root}"), "not valid for name"),
        ("localhost", format!("sslmode=verify-full&sslrootcert={wrong}"), "invalid peer certificate"),
        ("localhost", format!("sslmode=verify-ca&sslrootcert={wrong}"), "invalid peer certificate"),
    ] {
        for told in refusals(&open(&server, host, &query)).await {
            assert!(told.contains(why) && !told.contains("down"), "{host} {query}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_only_by_who_requires_it() {
    let server = Server::start();
    server.sql("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)").unwrap();
    assert_eq!(is_encrypted(&server, &open(&server, "127.0.0.1", "sslmode=prefer")).await, ["false"; 2]);
    for told in refusals(&open(&server, "127.0.0.1", "sslmode=require")).await {
        assert!(told.contains("does not support TLS"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_its_certificate() {
    let authority = Authority::new();
    let server = secure(
        &authority,
        "local all all trust\nhostssl all postgres 127.0.0.1/32 trust clientcert=verify-full\n\
                                     hostnossl all postgres 127.0.0.1/32 trust\n",
    );
    let write = |name: &str, text: &str| server.write(name, text).display().to_string();
    let (cert, key) = authority.sign("nowhere", "postgres");
    let shown = format!(
        "sslmode=require&sslcert={}&sslkey={}",
        write("client.crt", &cert),
        write("client.key", &key)
    );
    assert_eq!(is_encrypted(&server, &open(&server, "127.0.0.1", &shown)).await, ["true"; 2]);
    for told in refusals(&open(&server, "127.0.0.1", "sslmode=require")).await {
        assert!(told.contains("certificate"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_expired_is_refused_as_such() {
    let authority = Authority::new();
    let server = secure_until(&authority, ANYBODY, 2020);
    let root = server.write("root.pem", &authority.pem).display().to_string();
    for mode in ["verify-ca", "verify-full"] {
        let database = open(&server, "localhost", &format!("sslmode={mode}&sslrootcert={root}"));
        for told in refusals(&database).await {
            assert!(told.contains("expired") && !told.contains("down"), "{mode}: {told}");
        }
    }
    assert_eq!(is_encrypted(&server, &open(&server, "localhost", "sslmode=require")).await, ["true"; 2]);
}

#[test]
fn what_concerns_tls_is_taken_out_of_a_url() {
    let url = "postgres://a:b@h/d?connect_timeout=5&sslmode=require&options=-c%20x%3D1&sslrootcert=%2Fa%20b&sslpassword=s%26t";
    let (left, words) = Words::split(url).unwrap();
    assert_eq!(left, "postgres://a:b@h/d?connect_timeout=5&options=-c%20x%3D1");
    assert_eq!((words.mode.as_deref(), words.root.as_deref()), (Some("require"), Some("/a b")));
    assert_eq!(words.password.as_deref(), Some("s&t"));
    assert_eq!(Words::split("postgres://h/d?sslmode=prefer").unwrap().0, "postgres://h/d");
    assert_eq!(Words::split("postgres://h/d").unwrap().0, "postgres://h/d");
    assert!(Words::split("postgres://h/d?sslcert=%ff").is_err());
}

#[test]
fn modes_and_files_that_are_wrong_are_told() {
    let complaint = |query: &str| Tls::of(&format!("postgres://h/d?{query}")).err().unwrap_or_default();
    assert!(complaint("sslmode=allow").contains("'allow' is none of disable, prefer"));
    assert!(complaint("sslmode=verify-full&sslrootcert=/no/such").starts_with("url: sslrootcert /no/such: "));
    assert!(complaint("sslcert=/no/such").contains("go together"));
    assert!(complaint("sslcert=/no/such&sslkey=/no/such").starts_with("url: sslcert /no/such: "));
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().display();
    assert!(complaint(&format!("sslmode=require&sslrootcert={empty}")).contains("no certificate in it"));
    // The system's roots are not known here.
    let system = complaint("sslmode=verify-full&sslrootcert=system");
    assert!(system.is_empty() || system.contains("no root certificates"), "{system}");
    let mode = |query: &str| Tls::of(&format!("postgres://h/d{query}")).unwrap().1.mode;
    assert_eq!(mode(""), SslMode::Prefer);
    assert_eq!((mode("?sslmode=disable"), mode("?sslmode=require")), (SslMode::Disable, SslMode::Require));
}
