//! A server started right after another's end, at its addresses.

use crate::support::{Client, Server, foreign, free_port};

/// A ring that polls a listener keeps it for some time after the end of its process.
#[test]
fn a_server_finds_the_places_of_one_that_has_just_ended() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s.sock");
    for backend in ["io_uring", "epoll"] {
        let (port, http) = (free_port(), free_port().to_string());
        let words =
            ["--io-backend", backend, "--unixsocket", path.to_str().expect("UTF-8"), "--http-port", &http];
        for round in 0..16 {
            let server = Server::start_on_with(port, &words);
            let mut server = server.unwrap_or_else(|| panic!("{backend}, start {round}: a place is in use"));
            let mut near = Client::unix(&path);
            near.expect("PING", "+PONG");
            let mut client = server.client();
            client.expect("SET k v", "+OK");
            match round % 3 {
                0 => client.send("SHUTDOWN\r\n"),
                1 => server.signal("TERM"),
                _ => server.signal("INT"),
            }
            assert_eq!(server.exit_code(), Some(0), "{backend}, end {round}");
            assert!(!path.exists(), "{backend}, end {round}: the path is left");
        }
    }
}
