//! Doors closed by default: other machines without a password, DEBUG, directives of files, modules.
//!
//! An address of this machine that is not that of the loopback is another machine's for a server, here as in
//! Redis.

use crate::support::{Client, PATIENCE, Server, foreign};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// An address of this machine by which a client is not local; None where there is none. Nothing is sent.
fn address_of_machine() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    if address.is_loopback() || address.is_unspecified() {
        eprintln!("this machine has no address but that of the loopback: not tried from elsewhere");
        return None;
    }
    Some(address)
}

/// A client that comes by this address.
fn by(address: IpAddr, server: &Server) -> Client {
    Client::to(SocketAddr::from((address, server.addr.port())))
}

/// Tries all that may be closed: DEBUG, and directives that name files.
fn tried(client: &mut Client) -> Vec<String> {
    let set = |name: &str| format!("CONFIG SET {name}");
    let mut lines = vec![
        "DEBUG SLEEP 0".to_owned(),
        "DEBUG NOSUCH".to_owned(),
        "CONFIG GET enable-protected-configs".to_owned(),
    ];
    lines.push(set("dbfilename other.rdb"));
    lines.push(set("maxclients 50 dbfilename third.rdb"));
    for name in ["enable-debug-command", "enable-module-command", "enable-protected-configs"] {
        lines.extend([set(&format!("{name} yes")), set(&format!("{name} no"))]);
    }
    lines.push("CONFIG GET maxclients".to_owned());
    lines.iter().map(|line| client.call(line)).collect()
}

const DENIED: &str = "-ERR DEBUG command not allowed.";
const PROTECTED: &str =
    "-ERR CONFIG SET failed (possibly related to argument 'dbfilename') - can't set protected config";

#[test]
fn debug_and_directives_of_files_are_open_as_configured() {
    if foreign() {
        return;
    }
    let far = address_of_machine();
    for mode in ["no", "yes", "local"] {
        let args = ["--bind", "0.0.0.0", "--protected-mode", "no", "--maxclients", "40"];
        let modes = [
            "--enable-debug-command",
            mode,
            "--enable-module-command",
            mode,
            "--enable-protected-configs",
            mode,
        ];
        let all = [&args[..], &modes].concat();
        let (server, redis) = (Server::start_with(&all), Server::peer("redis8-server", &all));
        for address in [Some(IpAddr::from([127, 0, 0, 1])), far].into_iter().flatten() {
            let replies = tried(&mut by(address, &server));
            let is_open = mode == "yes" || (mode == "local" && address.is_loopback());
            assert_eq!(!replies[0].starts_with(DENIED), is_open, "{mode}, {address}: {replies:?}");
            assert_eq!(!replies[1].starts_with(DENIED), is_open, "{mode}, {address}: {replies:?}");
            assert_eq!(replies[3] == "+OK", is_open, "{mode}, {address}: {replies:?}");
            assert_eq!(replies[3] == PROTECTED, !is_open, "{mode}, {address}: {replies:?}");
            // All of a CONFIG SET or nothing.
            let maxclients = if is_open || replies[4] == "+OK" { "50" } else { "40" };
            assert_eq!(
                replies.last(),
                Some(&format!("[\"maxclients\", \"{maxclients}\"]")),
                "{mode}, {address}"
            );
            if let Some(redis) = &redis {
                assert_eq!(replies, tried(&mut by(address, redis)), "{mode}, {address}");
            }
            by(address, &server).call("CONFIG SET maxclients 40");
            redis.as_ref().inspect(|redis| drop(by(address, redis).call("CONFIG SET maxclients 40")));
        }
    }
}

#[test]
fn a_word_for_who_may_is_no_yes_or_local() {
    for name in ["enable-debug-command", "enable-module-command", "enable-protected-configs"] {
        let output = crate::support::run(&["--port", "0", "--save", "", &format!("--{name}"), "maybe"]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = crate::support::said(&output);
        assert!(said.contains("argument(s) must be one of the following"), "{said}");
    }
}

#[test]
fn no_module_is_loaded_whatever_is_configured() {
    if foreign() {
        return;
    }
    for mode in ["no", "yes", "local"] {
        let server = Server::start_with(&["--enable-module-command", mode]);
        let mut client = server.client();
        for line in ["MODULE LOAD /x.so", "MODULE LOADEX /x.so", "MODULE UNLOAD x"] {
            let reply = client.call(line);
            assert!(reply.starts_with("-ERR MODULE "), "{mode}: {reply}");
        }
        client.expect("MODULE LIST", "[]");
    }
}

/// The first words to a client that is refused end with the connection. They are the same in Redis, but for the
/// name.
#[test]
fn protected_mode_serves_this_machine_alone() {
    let Some(far) = address_of_machine() else { return };
    let args = ["--bind", "0.0.0.0", "--protected-mode", "yes"];
    let (server, redis) = (Server::start_with(&args), Server::redis(&args));
    for server in [Some(&server), redis.as_ref()].into_iter().flatten() {
        let mut near = server.client();
        near.expect("PING", "+PONG");
        let mut refused = by(far, server);
        let reply = refused.reply();
        assert!(reply.starts_with("-DENIED ") && reply.contains("protected mode"), "{reply}");
        assert!(refused.is_closed_within(PATIENCE));
        // A password opens it, and so does the word.
        near.expect("CONFIG SET requirepass secret", "+OK");
        by(far, server).expect("PING", "-NOAUTH Authentication required.");
        by(far, server).expect("AUTH secret", "+OK");
        near.expect("CONFIG SET requirepass \"\"", "+OK");
        assert!(by(far, server).reply().starts_with("-DENIED "));
        near.expect("CONFIG SET protected-mode no", "+OK");
        by(far, server).expect("PING", "+PONG");
        near.expect("CONFIG SET protected-mode yes", "+OK");
        // A user `default` that may not log in is no open door.
        near.expect("ACL SETUSER admin on >p ~* &* +@all", "+OK");
        near.expect("AUTH admin p", "+OK");
        near.expect("ACL SETUSER default off resetpass", "+OK");
        by(far, server).expect("AUTH admin p", "+OK");
    }
}

/// Comments, order, and lines of other kinds stay; so does a command's other name.
#[test]
fn a_rewrite_keeps_the_look_of_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, part) = (dir.path().join("own.conf"), dir.path().join("part.conf"));
    std::fs::write(&part, "maxclients 77\n").expect("written");
    let head = format!(
        "# mine\n\nrename-command FLUSHALL \"\"\n  # a remark\ninclude {}/*t.conf\n",
        dir.path().display()
    );
    let tail = "requirepass \"a b\"\n# end\n";
    std::fs::write(&file, format!("{head}timeout 7\n{tail}")).expect("written");
    let server = Server::start_file(&file);
    let mut client = server.client();
    client.expect("AUTH \"a b\"", "+OK");
    assert!(client.call("FLUSHALL").starts_with("-ERR unknown command"));
    client.expect("CONFIG GET maxclients", "[\"maxclients\", \"77\"]");
    client.expect("CONFIG SET timeout 9", "+OK");
    client.expect("CONFIG REWRITE", "+OK");
    let text = std::fs::read_to_string(&file).expect("read");
    assert!(text.starts_with(&format!("{head}timeout 9\n{tail}")), "{text}");
    assert_eq!(std::fs::read_to_string(&part).expect("read"), "maxclients 77\n");
    let server = Server::start_file(&file);
    let mut client = server.client();
    client.expect("AUTH \"a b\"", "+OK");
    client.expect("CONFIG GET timeout", "[\"timeout\", \"9\"]");
    assert!(client.call("FLUSHALL").starts_with("-ERR unknown command"));
}

/// Rules of users name commands as ever, also those that are called otherwise here.
#[test]
fn users_have_rights_to_commands_by_their_first_names() {
    if foreign() {
        return;
    }
    let args = ["--rename-command", "GET", "fetch", "--rename-command", "config", "c-f"];
    let (server, redis) = (Server::start_with(&args), Server::peer("redis8-server", &args));
    let lines = [
        "ACL SETUSER u on nopass ~* +get +c-f",
        "ACL SETUSER u on nopass ~* +fetch",
        "ACL SETUSER u on nopass ~* +get +config|get",
        "ACL SETUSER u on nopass ~* -fetch",
        "ACL DRYRUN u get k",
        "ACL DRYRUN u fetch k",
        "ACL DRYRUN u c-f GET maxclients",
        "ACL GETUSER u",
        "AUTH u x",
        // Redis 8 forgets for one call that GET is another name's.
        "GET k",
        "FETCH k",
        "C-F GET nosuch",
        "C-F SET maxclients 1",
        "CONFIG GET nosuch",
        "SET k v",
    ];
    let replies = |server: &Server| -> Vec<String> {
        let mut client = server.client();
        lines.iter().map(|line| format!("{line}: {}", client.call(line))).collect()
    };
    let ours = replies(&server);
    assert_eq!(ours[10], "FETCH k: (nil)");
    assert!(ours[12].contains("-NOPERM") && ours[14].contains("-NOPERM"), "{ours:?}");
    if let Some(redis) = redis {
        assert_eq!(ours, replies(&redis));
    }
}

/// A source opens files and ports of the server's machine, and its errors tell which are there.
#[test]
fn a_client_adds_sources_only_where_that_is_allowed() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("shop.db");
    let add = format!("EVENKEEL SOURCE ADD items item:{{id}} sqlite:{} table items", file.display());
    let server = Server::start_with(&["--enable-protected-configs", "no"]);
    let mut client = server.client();
    for line in [add.as_str(), "EVENKEEL SOURCE ADD p p:{id} postgres://127.0.0.1:1/x table t"] {
        let refusal = client.call(line);
        assert!(refusal.starts_with("-ERR EVENKEEL SOURCE ADD not allowed."), "{refusal}");
    }
    client.expect("EVENKEEL SOURCE LIST", "[]");
    assert!(!file.exists());
    for mode in ["local", "yes"] {
        let server = Server::start_with(&["--enable-protected-configs", mode]);
        let reply = server.client().call(&add);
        assert!(!reply.contains("not allowed"), "{mode}: {reply}");
    }
}
