//! `evenkeel load` and `evenkeel copy` with servers that want TLS: real ones, since Evenkeel has none.

use crate::support::{Server, foreign, free_port, run, said};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::Path;

/// Writes a root, certificates for localhost and for a client that come from it, and another root.
fn write_certificates(folder: &Path) {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("written");
    let root = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect("a certificate");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        write(name, params.self_signed(&key).expect("signed").pem());
        Issuer::new(params, key)
    };
    root("other.crt");
    let issuer = root("root.crt");
    for (name, host) in [("server", "localhost"), ("client", "client"), ("expired", "localhost")] {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a certificate");
        // OpenSSL takes a certificate with its issuer's name for its own issuer.
        params.distinguished_name.push(DnType::CommonName, host);
        if name == "expired" {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        write(&format!("{name}.crt"), params.signed_by(&key, &issuer).expect("signed").pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

/// A real Redis with a port for TLS and the certificate of this name. `clients`: whether it asks for
/// certificates of clients.
fn secure(folder: &Path, name: &str, clients: &str) -> Option<(Server, u16)> {
    let (port, file) = (free_port(), |name: &str| folder.join(name).display().to_string());
    let (cert, key, root, port_text) =
        (file(&format!("{name}.crt")), file(&format!("{name}.key")), file("root.crt"), port.to_string());
    let words = ["--tls-port", &port_text, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let more = ["--tls-ca-cert-file", &root, "--tls-auth-clients", clients];
    Some((Server::redis(&[&words[..], &more].concat())?, port))
}

/// Runs a command whose words are separated by spaces, with `{dir}` for the folder.
fn run_words(folder: &Path, words: &str) -> (bool, String) {
    let words = words.replace("{dir}", &folder.display().to_string());
    let output = run(&words.split(' ').collect::<Vec<_>>());
    (output.status.success(), said(&output))
}

#[test]
fn rows_are_loaded_over_tls_with_whom_the_certificates_say() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    write_certificates(folder.path());
    std::fs::write(folder.path().join("rows.csv"), "id,v\n1,a\n2,b\n").expect("written");
    let Some((redis, port)) = secure(folder.path(), "server", "no") else { return };
    let mut client = redis.client();
    let load = |more: &str| {
        let words = "load {dir}/rows.csv --key k:{id} --existing replace --to";
        run_words(folder.path(), &format!("{words} {more}"))
    };
    for right in [
        format!("localhost:{port} --tls --cacert {{dir}}/root.crt"),
        format!("127.0.0.1:{port} --tls --cacert {{dir}}/root.crt --sni localhost"),
        format!("127.0.0.1:{port} --tls --insecure"),
        format!("rediss://localhost:{port} --cacert {{dir}}/root.crt"),
    ] {
        client.expect("FLUSHALL", "+OK");
        let (well, text) = load(&right);
        assert!(well && text.contains("2 rows as 2 values"), "{right}: {text}");
        client.expect("DBSIZE", ":2");
    }
    client.expect("FLUSHALL", "+OK");
    let plain = redis.addr.port();
    let Some((_late, expired)) = secure(folder.path(), "expired", "no") else { return };
    for (wrong, why) in [
        (
            format!("localhost:{port} --tls --cacert {{dir}}/other.crt"),
            "TLS: invalid peer certificate: UnknownIssuer",
        ),
        (format!("127.0.0.1:{port} --tls --cacert {{dir}}/root.crt"), "certificate not valid for name"),
        (format!("localhost:{port} --tls"), "certificate"),
        (format!("localhost:{port} --tls --cacert {{dir}}/rows.csv"), "there is no certificate in it"),
        (format!("localhost:{port} --tls --cacert {{dir}}/nothing"), "--cacert"),
        (format!("localhost:{port}"), "if it wants TLS, say so"),
        (format!("localhost:{plain} --tls --insecure --timeout 1"), "is that its port for TLS?"),
        (format!("localhost:{port} --cacert {{dir}}/root.crt"), "--tls"),
        (format!("localhost:{port} --tls --insecure --cert {{dir}}/client.crt"), "--cert-key"),
        ("{dir}/socket --tls --insecure".to_owned(), "no TLS over a unix socket"),
        (format!("rediss://localhost:{port}"), "certificate"),
        (
            format!("localhost:{expired} --tls --cacert {{dir}}/root.crt"),
            "TLS: invalid peer certificate: certificate expired",
        ),
    ] {
        let (well, text) = load(&wrong);
        assert!(!well && text.contains(why), "{wrong}: {text}");
    }
    client.expect("DBSIZE", ":0");
}

#[test]
fn a_copy_shows_each_end_the_certificate_that_it_asks_for() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    write_certificates(folder.path());
    let servers = ["server"; 2].map(|name| secure(folder.path(), name, "yes"));
    let [Some((from, from_port)), Some((to, to_port))] = servers else { return };
    let (mut source, mut target) = (from.client(), to.client());
    source.expect("MSET a 1 b 2", "+OK");
    source.expect("SET large x", "+OK");
    // More than one record, and more than the buffers of a socket.
    source.expect("SETRANGE large 20000000 y", ":20000001");
    let ends = format!(
        "copy --from localhost:{from_port} --from-tls --from-cacert {{dir}}/root.crt --to localhost:{to_port} --tls --cacert {{dir}}/root.crt"
    );
    let ours = "--cert {dir}/client.crt --cert-key {dir}/client.key";
    let theirs = ours.replace("--cert", "--from-cert");
    for missing in [ours, &theirs] {
        let (well, text) = run_words(folder.path(), &format!("{ends} {missing}"));
        assert!(!well && text.contains("CertificateRequired"), "{text}");
    }
    target.expect("DBSIZE", ":0");
    let (well, text) = run_words(folder.path(), &format!("{ends} {ours} {theirs}"));
    assert!(well && text.contains("3 keys as 3 values"), "{text}");
    target.expect("MGET a b", "[\"1\", \"2\"]");
    target.expect("STRLEN large", ":20000001");
}

#[test]
fn a_server_is_measured_over_tls() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    write_certificates(folder.path());
    let Some((redis, port)) = secure(folder.path(), "server", "yes") else { return };
    let bench =
        format!("bench copy throughput --keys 2000 --seconds 0.2 --against rediss://localhost:{port}");
    let (well, text) = run_words(
        folder.path(),
        &format!("{bench} --cacert {{dir}}/root.crt --cert {{dir}}/client.crt --cert-key {{dir}}/client.key"),
    );
    assert!(well && text.contains("get_pipelined_per_s"), "{text}");
    redis.client().expect("DBSIZE", ":0");
    let (well, text) = run_words(folder.path(), &format!("{bench} --cacert {{dir}}/other.crt"));
    assert!(!well && text.contains("cannot connect"), "{text}");
}
