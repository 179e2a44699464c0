//! `rename-command`: commands under other names, or none.

use crate::support::{Server, run, said};

const LONG: &str = "set-0123456789012345678901234567890123456789";

#[test]
fn a_renamed_command_is_known_by_its_new_name_only() {
    let server = Server::start_with(&["--rename-command", "SET", LONG, "--rename-command", "config", "c-f"]);
    let mut client = server.client();
    client.expect("SET k 1", "-ERR unknown command 'SET', with args beginning with: 'k' '1' ");
    client.expect(&format!("{} k 1", LONG.to_uppercase()), "+OK");
    client.expect(&format!("{LONG} k"), "-ERR wrong number of arguments for 'set' command");
    client.expect("c-f GET port", &format!("[\"port\", \"{}\"]", server.addr.port()));
    client.expect("c-f nosuch", "-ERR unknown subcommand 'nosuch'. Try C-F HELP.");
    client.expect(&format!("EVAL \"return redis.call('{LONG}', KEYS[1], 2)\" 1 k"), "+OK");
    let error = client.call("EVAL \"return redis.call('set', KEYS[1], 2)\" 1 k");
    assert!(error.starts_with("-ERR Unknown Redis command called from script"), "{error}");
}

#[test]
fn a_removed_name_is_free_for_another_command() {
    let server = Server::start_with(&["--rename-command", "get", "", "--rename-command", "del", "GET"]);
    let mut client = server.client();
    client.expect("SET k 1", "+OK");
    client.expect("GET k", ":1");
    client.expect("DEL k", "-ERR unknown command 'DEL', with args beginning with: 'k' ");
    client.expect("GET", "-ERR wrong number of arguments for 'del' command");
}

#[test]
fn command_shows_what_can_be_called() {
    let server = Server::start_with(&["--rename-command", "get", "", "--rename-command", "multi", "begin"]);
    let mut client = server.client();
    let usual: i64 = Server::start().client().call("COMMAND COUNT")[1..].parse().expect("a number");
    client.expect("COMMAND COUNT", &format!(":{}", usual - 1));
    client.expect("COMMAND LIST FILTERBY PATTERN get", "[]");
    client.expect("COMMAND LIST FILTERBY PATTERN multi", r#"["multi"]"#);
    client.expect("COMMAND DOCS get", "[]");
    let info = client.call("COMMAND INFO get multi begin");
    assert!(
        info.starts_with("[(nil array), (nil array), [\"multi\"")
            || info.starts_with("[(nil), (nil), [\"multi\""),
        "{info}"
    );
    client.expect("COMMAND GETKEYS get k", "-ERR Invalid command specified");
    client.expect("BEGIN", "+OK");
    client.expect("PING", "+QUEUED");
    client.expect("EXEC", "[+PONG]");
}

#[test]
fn names_that_cannot_be_are_mistakes_of_the_configuration() {
    for (from, to, reason) in [
        ("nosuch", "x", "No such command in rename-command"),
        ("get", "set", "Target command name already exists"),
    ] {
        let output = run(&["--port", "0", "--save", "", "--rename-command", from, to]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(reason), "{}", said(&output));
    }
}
