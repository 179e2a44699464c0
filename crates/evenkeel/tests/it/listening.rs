//! CONFIG SET of ports and addresses: where the server listens changes while it runs.

use crate::support::{Client, Server, foreign, free_port};
use std::net::{SocketAddr, TcpListener, TcpStream};

const NO_PORT: &str = "-ERR CONFIG SET failed (possibly related to argument 'port') - Unable to listen on this port. \
                       Check server logs.";
const NO_ADDRESS: &str =
    "-ERR CONFIG SET failed (possibly related to argument 'bind') - Failed to bind to specified addresses.";

fn on_both(test: impl Fn(&Server)) {
    if foreign() {
        return test(&Server::start());
    }
    ["epoll", "io_uring"].iter().for_each(|name| test(&Server::start_with(&["--io-backend", name])));
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn answers(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok_and(|_| Client::to(address).call("PING") == "+PONG")
}

#[test]
fn a_server_moves_to_another_port_and_its_clients_stay() {
    on_both(|server| {
        let (mut client, port) = (server.client(), free_port());
        let (old, new) = (server.addr, at(port));
        client.expect(&format!("CONFIG SET port {port}"), "+OK");
        assert!(answers(new) && TcpStream::connect(old).is_err());
        client.expect("CONFIG GET port", &format!("[\"port\", \"{port}\"]"));
        assert!(client.call("INFO server").contains(&format!("tcp_port:{port}\\r\\n")));
        // Back, and to the port it listens on.
        client.expect(&format!("CONFIG SET port {}", old.port()), "+OK");
        client.expect(&format!("CONFIG SET port {}", old.port()), "+OK");
        assert!(answers(old) && TcpStream::connect(new).is_err());
        client.expect("CONFIG SET port 0", "+OK");
        assert!(TcpStream::connect(old).is_err());
        client.expect("PING", "+PONG");
        client.expect(&format!("CONFIG SET port {}", old.port()), "+OK");
        assert!(answers(old));
    });
}

#[test]
fn a_port_that_is_taken_changes_nothing() {
    on_both(|server| {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("an address").port();
        let mut client = server.client();
        client.expect(&format!("CONFIG SET port {port}"), NO_PORT);
        client.expect(&format!("CONFIG SET timeout 77 port {port}"), NO_PORT);
        client.expect("CONFIG GET timeout", "[\"timeout\", \"0\"]");
        client.expect("CONFIG GET port", &format!("[\"port\", \"{}\"]", server.addr.port()));
        client.expect(
            "CONFIG SET port 65536",
            "-ERR CONFIG SET failed (possibly related to argument 'port') - argument must be between 0 and 65535 \
             inclusive",
        );
        assert!(answers(server.addr));
    });
}

/// The old socket and a new one may be in each other's way: they have the same port.
#[test]
fn addresses_change_on_the_same_port() {
    on_both(|server| {
        let mut client = server.client();
        let other = SocketAddr::from(([127, 0, 0, 2], server.addr.port()));
        assert!(!answers(other));
        client.expect("CONFIG SET bind 0.0.0.0", "+OK");
        assert!(answers(other) && answers(server.addr));
        client.request(&[b"CONFIG", b"SET", b"bind", b"127.0.0.2 127.0.0.1"]);
        client.expect_reply("+OK");
        assert!(answers(other) && answers(server.addr));
        client.expect("CONFIG SET bind 127.0.0.1", "+OK");
        assert!(!answers(other) && answers(server.addr));
        // An address that this machine lacks is an error, unless it may be missing.
        for words in ["192.0.2.1", "127.0.0.2 192.0.2.1", "0.0.0.0 192.0.2.1"] {
            client.request(&[b"CONFIG", b"SET", b"bind", words.as_bytes()]);
            client.expect_reply(NO_ADDRESS);
            assert!(!answers(other) && answers(server.addr), "{words}");
        }
        client.expect("CONFIG GET bind", "[\"bind\", \"127.0.0.1\"]");
        client.request(&[b"CONFIG", b"SET", b"bind", b"127.0.0.2 -192.0.2.1"]);
        client.expect_reply("+OK");
        assert!(answers(other) && !answers(server.addr));
    });
}

#[test]
fn a_change_is_refused_in_a_transaction() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("MULTI", "+OK");
    client.expect("CONFIG SET port 0", "+QUEUED");
    client.expect(
        "EXEC",
        "[-ERR CONFIG SET of files and addresses is not allowed in a transaction: other clients would wait for it]",
    );
    assert!(answers(server.addr));
}

#[test]
fn a_rewritten_file_has_the_new_port_and_address() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("server.conf");
    std::fs::write(&file, "timeout 5\n").expect("written");
    let (server, port) = (Server::start_file(&file), free_port());
    let mut client = server.client();
    client.expect(&format!("CONFIG SET port {port} bind 127.0.0.2"), "+OK");
    client.expect("CONFIG REWRITE", "+OK");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(text.contains(&format!("\nport {port}\n")) && text.contains("\nbind 127.0.0.2\n"), "{text}");
}

#[test]
fn http_is_served_elsewhere() {
    if foreign() {
        return;
    }
    let (server, http) = Server::start_http(&[]);
    let (mut client, port) = (server.client(), free_port());
    client.expect(&format!("CONFIG SET http-port {port}"), "+OK");
    assert!(TcpStream::connect(http).is_err());
    let mut page = Client::to(at(port));
    page.send("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(page.raw(12).starts_with(b"HTTP/1.1 "));
    client.expect("CONFIG SET http-bind 127.0.0.2", "+OK");
    assert!(TcpStream::connect(at(port)).is_err());
    assert!(TcpStream::connect(("127.0.0.2", port)).is_ok());
}
