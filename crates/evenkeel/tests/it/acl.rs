//! Users: logging in, what they may do, and what happens when they change. The texts are those of Redis 8.

use crate::http::{Http, shown};
use crate::support::{Client, PATIENCE, Server, foreign, free_port, run, said};
use std::fs;

const KEY: &str = "-NOPERM No permissions to access a key";
const CHANNEL: &str = "-NOPERM No permissions to access a channel";

/// A client that has logged in.
fn as_user(server: &Server, name: &str, password: &str) -> Client {
    let mut client = server.client();
    client.expect(&format!("AUTH {name} {password}"), "+OK");
    client
}

#[test]
fn a_user_does_what_its_rules_say() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("ACL SETUSER u on >p ~a* %R~r* %W~w* &ch* +@all -@admin -flushall", "+OK");
    let mut u = as_user(&server, "u", "p");
    let denied = |name: &str| format!("-NOPERM User u has no permissions to run the '{name}' command");
    for (call, reply) in [
        ("ACL WHOAMI", "\"u\""),
        ("GET a", "(nil)"),
        ("GET b", KEY),
        ("SET r 1", KEY),
        ("GET w", KEY),
        ("SET w 1", "+OK"),
        ("SET w 1 GET", KEY),
        ("EXISTS w", ":1"),
        ("MSET a 1 b 2", KEY),
        ("FLUSHALL", &denied("flushall")),
        ("CONFIG GET x", &denied("config|get")),
        ("ACL LIST", &denied("acl|list")),
        ("SORT a BY x* GET y*", "-ERR BY option of SORT denied due to insufficient ACL permissions."),
        ("SORT a GET #", "-ERR GET option of SORT denied due to insufficient ACL permissions."),
        ("SUBSCRIBE x", CHANNEL),
        ("PUBLISH x y", CHANNEL),
        ("PUBLISH ch1 y", ":0"),
        ("PSUBSCRIBE ch1", CHANNEL),
        ("WATCH b", KEY),
        ("BLPOP a b 0.01", KEY),
        ("EVAL x 1 b", KEY),
        ("OBJECT ENCODING b", KEY),
        ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: "),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("MULTI", "+OK"),
        ("GET b", KEY),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("PSUBSCRIBE ch*", "[\"psubscribe\", \"ch*\", :1]"),
    ] {
        u.expect(call, reply);
    }
    // A command of very many words is asked for in slices, and judged the same.
    let mut v = as_user(&server, "u", "p");
    let many = |last: &str| format!("MSET {} {last} 1", "a 1 ".repeat(20_000));
    v.expect(&many("a"), "+OK");
    v.expect(&many("b"), KEY);
    admin.expect("EXISTS b", ":0");
}

#[test]
fn scripts_do_what_their_users_may() {
    if foreign() {
        return;
    }
    let server = Server::start();
    server.client().expect("ACL SETUSER u on nopass ~a +@all -incr", "+OK");
    let mut u = as_user(&server, "u", "x");
    let mut eval = |script: &str| u.call_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
    let failed = "ERR ACL failure in script: ";
    let reply = eval("return redis.call('get', 'b')");
    assert!(reply.starts_with(&format!("-{failed}No permissions to access a key script: ")), "{reply}");
    let reply = eval("return redis.pcall('incr', 'a')");
    assert_eq!(reply, format!("-{failed}User u has no permissions to run the 'incr' command"));
    assert_eq!(eval("return redis.call('set', 'a', 1)"), "+OK");
    assert_eq!(
        eval("return redis.pcall('publish', 'c', 1)"),
        format!("-{failed}No permissions to access a channel")
    );
    assert_eq!(eval("return redis.acl_check_cmd('get', 'b')"), "(nil)");
    assert_eq!(eval("return redis.acl_check_cmd('get', 'a')"), ":1");
    assert!(
        eval("return redis.acl_check_cmd('nope')")
            .contains("Invalid command passed to redis.acl_check_cmd()")
    );
    // On a thread, and in a transaction.
    let long = "local s = 0 for i = 1, 3000000 do s = s + i end return redis.pcall('get', 'b')";
    assert_eq!(eval(long), format!("-{failed}No permissions to access a key"));
    u.expect("MULTI", "+OK");
    u.call_bytes(&[b"EVAL", b"return redis.pcall('get', 'b')", b"0"]);
    u.expect("EXEC", &format!("[-{failed}No permissions to access a key]"));
}

#[test]
fn a_change_takes_effect_at_once() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("ACL SETUSER u on >p ~a* ~l &ch* +@all", "+OK");
    let mut u = as_user(&server, "u", "p");
    // Queued, and then forbidden.
    u.expect("MULTI", "+OK");
    u.expect("SET a 1", "+QUEUED");
    u.expect("GET a", "+QUEUED");
    admin.expect("ACL SETUSER u -get", "+OK");
    let reply = u.call("EXEC");
    assert!(reply.starts_with("-EXECABORT") && reply.contains("NOPERM ACLs rules changed"), "{reply}");
    admin.expect("EXISTS a", ":0");
    u.expect("MULTI", "+OK");
    u.expect("SET a 1", "+QUEUED");
    admin.expect("ACL SETUSER u -incr", "+OK");
    u.expect("EXEC", "[+OK]");
    // Blocked, and then forbidden: the client is told, and the key is not touched.
    u.send("BLPOP l 0\r\n");
    let mut other = as_user(&server, "u", "p");
    while !other.call("CLIENT LIST").contains(" flags=b ") {}
    admin.expect("ACL SETUSER u resetkeys", "+OK");
    admin.expect("RPUSH l x", ":1");
    u.expect_reply(KEY);
    admin.expect("LRANGE l 0 -1", "[\"x\"]");
    // Subscribed, and then forbidden: the client is closed before it hears more.
    let mut hears = as_user(&server, "u", "p");
    hears.expect("SUBSCRIBE ch1", "[\"subscribe\", \"ch1\", :1]");
    admin.expect("ACL SETUSER u resetchannels &ch*", "+OK");
    admin.expect("PUBLISH ch1 hello", ":1");
    hears.expect_reply("[\"message\", \"ch1\", \"hello\"]");
    admin.expect("ACL SETUSER u resetchannels &other", "+OK");
    admin.call("PUBLISH ch1 secret");
    assert!(hears.is_closed_within(PATIENCE));
    // Off: who is in may go on. Removed: who is in is closed, also if there is one of that name again.
    admin.expect("ACL SETUSER u off allkeys +get", "+OK");
    u.expect("GET a", "\"1\"");
    server.client().expect("AUTH u p", "-WRONGPASS invalid username-password pair or user is disabled.");
    admin.expect("ACL DELUSER u nobody", ":1");
    admin.expect("ACL SETUSER u on >p +@all allkeys", "+OK");
    assert!(u.is_closed_within(PATIENCE) && other.is_closed_within(PATIENCE));
    // A user that removes itself is answered first.
    let mut itself = as_user(&server, "u", "p");
    itself.expect("ACL DELUSER u", ":1");
    assert!(itself.is_closed_within(PATIENCE));
    admin.expect("ACL DELUSER default", "-ERR The 'default' user cannot be removed");
}

/// The clients are told in slices; the answer comes when all were.
#[test]
fn all_clients_of_a_user_are_closed() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--event-loops", "3"]);
    let mut admin = server.client();
    admin.expect("ACL SETUSER u on nopass ~* &* +@all", "+OK");
    let mut theirs: Vec<Client> = (0..100).map(|_| as_user(&server, "u", "x")).collect();
    let mut others: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for (i, client) in theirs.iter_mut().enumerate() {
        client.expect(&format!("SUBSCRIBE c{}", i % 2), &format!("[\"subscribe\", \"c{}\", :1]", i % 2));
    }
    // One channel less: half of them are closed, and hear nothing of what comes then.
    admin.expect("ACL SETUSER u resetchannels &c0", "+OK");
    admin.call("PUBLISH c1 secret");
    for (i, client) in theirs.iter_mut().enumerate() {
        match i % 2 {
            0 => client.expect("PING", "[\"pong\", \"\"]"),
            _ => assert!(client.is_closed_within(PATIENCE), "{i}"),
        }
    }
    admin.expect("ACL DELUSER u", ":1");
    for client in theirs.iter_mut().step_by(2) {
        assert!(client.is_closed_within(PATIENCE));
    }
    others.iter_mut().for_each(|client| client.expect("PING", "+PONG"));
    // In a transaction, too.
    admin.expect("ACL SETUSER u on nopass +@all", "+OK");
    let mut u = as_user(&server, "u", "x");
    admin.expect("MULTI", "+OK");
    admin.expect("ACL DELUSER u", "+QUEUED");
    admin.expect("EXEC", "[:1]");
    assert!(u.is_closed_within(PATIENCE));
}

#[test]
fn what_was_denied_is_logged() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("ACL SETUSER u on >p ~a +@all -flushall", "+OK");
    let mut u = server.client();
    for call in ["AUTH u bad", "AUTH nouser bad", "AUTH u p", "GET b", "GET b", "MULTI", "GET b", "DISCARD"] {
        u.call(call);
    }
    u.call_bytes(&[b"EVAL", b"return redis.pcall('get', 'b')", b"0"]);
    for call in ["PUBLISH x y", "FLUSHALL", "HELLO 3 AUTH u x"] {
        u.call(call);
    }
    let log = admin.call("ACL LOG 100");
    let heads = [
        ("1", "auth", "toplevel", "HELLO", "u"),
        ("1", "command", "toplevel", "flushall", "u"),
        ("1", "channel", "toplevel", "x", "u"),
        ("1", "key", "lua", "b", "u"),
        ("1", "key", "multi", "b", "u"),
        ("2", "key", "toplevel", "b", "u"),
        ("1", "auth", "toplevel", "AUTH", "nouser"),
        ("1", "auth", "toplevel", "AUTH", "u"),
    ];
    let mut rest = &log[..];
    for (count, reason, context, object, user) in heads {
        let head = format!(
            "[\"count\", :{count}, \"reason\", \"{reason}\", \"context\", \"{context}\", \"object\", \"{object}\", \
             \"username\", \"{user}\", \"age-seconds\", \""
        );
        let at = rest.find(&head).unwrap_or_else(|| panic!("{head} is missing in {log}"));
        rest = &rest[at + head.len()..];
    }
    assert_eq!(log.matches("\"entry-id\"").count(), heads.len());
    assert!(!log.contains("bad"), "{log}");
    let info = admin.call("INFO stats");
    for (field, count) in [("auth", 3), ("cmd", 1), ("key", 4), ("channel", 1)] {
        assert!(info.contains(&format!("acl_access_denied_{field}:{count}\\r\\n")), "{field}: {info}");
    }
    assert_eq!(admin.call("ACL LOG 1").matches("\"count\"").count(), 1);
    admin.expect("ACL LOG -1", "[]");
    admin.expect("ACL LOG x", "-ERR value is not an integer or out of range");
    admin.expect("CONFIG SET acllog-max-len 2", "+OK");
    u.call("GET c");
    assert_eq!(admin.call("ACL LOG").matches("\"count\"").count(), 2);
    admin.expect("ACL LOG RESET", "+OK");
    admin.expect("ACL LOG", "[]");
    // Rules are shown nowhere.
    admin.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
    admin.expect("ACL SETUSER u >hushhush", "+OK");
    assert!(!admin.call("SLOWLOG GET 10").contains("hushhush"));
}

#[test]
fn users_are_described_and_counted() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("ACL LIST", "[\"user default on nopass sanitize-payload ~* &* +@all\"]");
    admin.expect("ACL SETUSER u on >a %R~x ~y &z +get (~k +set)", "+OK");
    admin.expect("ACL USERS", "[\"default\", \"u\"]");
    let hash = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    admin.expect(
        "ACL GETUSER u",
        &format!(
            "[\"flags\", [\"on\", \"sanitize-payload\"], \"passwords\", [\"{hash}\"], \"commands\", \"-@all +get\", \
             \"keys\", \"%R~x ~y\", \"channels\", \"&z\", \"selectors\", [[\"commands\", \"-@all +set\", \"keys\", \
             \"~k\", \"channels\", \"\"]]]"
        ),
    );
    admin.expect("ACL GETUSER nope", "(nil)");
    for (call, reply) in [
        (
            "ACL SETUSER u +foo",
            "-ERR Error in ACL SETUSER modifier '+foo': Unknown command or category name in ACL",
        ),
        ("ACL SETUSER u (~a", "-ERR Unmatched parenthesis in acl selector starting at '(~a'."),
        ("ACL SETUSER", "-ERR wrong number of arguments for 'acl|setuser' command"),
        ("ACL DRYRUN v get x", "-ERR User 'v' not found"),
        ("ACL DRYRUN u nope", "-ERR Command 'nope' not found"),
        ("ACL DRYRUN u get", "-ERR wrong number of arguments for 'get' command"),
        ("ACL DRYRUN u get y", "+OK"),
        ("ACL DRYRUN u get b", "\"User u has no permissions to access the 'b' key\""),
        ("ACL DRYRUN u del b", "\"User u has no permissions to run the 'del' command\""),
        (
            "ACL GENPASS 0",
            "-ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
        ),
        ("ACL GENPASS x", "-ERR value is not an integer or out of range"),
        ("ACL CAT x", "-ERR Unknown category 'x'"),
        (
            "AUTH x",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
        ),
        ("AUTH a b c", "-ERR syntax error"),
        ("AUTH default x", "+OK"),
        ("CLIENT LIST USER nobody", "-ERR No such user 'nobody'"),
    ] {
        admin.expect(call, reply);
    }
    assert_eq!(admin.call("ACL GENPASS").len(), 66);
    assert_ne!(admin.call("ACL GENPASS"), admin.call("ACL GENPASS"));
    assert_eq!(admin.call("ACL GENPASS 5").len(), 4);
    // The connection shows its user, and can be found by it.
    admin.expect("ACL SETUSER u +@all", "+OK");
    let mut u = as_user(&server, "u", "a");
    assert!(u.call("CLIENT INFO").contains(" user=u "));
    assert_eq!(u.call("CLIENT LIST USER u").matches("id=").count(), 1);
    u.expect("RESET", "+RESET");
    u.expect("ACL WHOAMI", "\"default\"");
    assert!(u.call("CLIENT INFO").contains(" user=default "));
    let hello = u.call("HELLO 3 AUTH u a");
    assert!(hello.contains("\"proto\""), "{hello}");
    admin.expect("CLIENT KILL USER u", ":1");
    assert!(u.is_closed_within(PATIENCE));
}

#[test]
fn requirepass_is_the_password_of_default() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut admin, mut guest) = (server.client(), server.client());
    admin.expect("AUTH default x", "+OK");
    guest.expect("GET k", "(nil)");
    admin.expect("ACL SETUSER default resetpass >zz", "+OK");
    admin.expect("CONFIG GET requirepass", "[\"requirepass\", \"\"]");
    let mut late = server.client();
    late.expect("GET k", "-NOAUTH Authentication required.");
    late.expect("AUTH zz", "+OK");
    admin.expect("CONFIG SET requirepass foo", "+OK");
    admin.expect("CONFIG GET requirepass", "[\"requirepass\", \"foo\"]");
    let hash = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    admin.expect("ACL LIST", &format!("[\"user default on sanitize-payload #{hash} ~* &* +@all\"]"));
    server.client().expect("AUTH zz", "-WRONGPASS invalid username-password pair or user is disabled.");
    admin.expect("ACL SETUSER default >bar", "+OK");
    server.client().expect("AUTH bar", "+OK");
    server.client().expect("AUTH foo", "+OK");
    admin.expect("CONFIG SET requirepass \"\"", "+OK");
    server.client().expect("GET k", "(nil)");
    // A limited default user, and one that is off.
    admin.expect("ACL SETUSER root on nopass +@all ~* &*", "+OK");
    let mut root = as_user(&server, "root", "x");
    root.expect("ACL SETUSER default -get", "+OK");
    guest.expect("GET k", "-NOPERM User default has no permissions to run the 'get' command");
    root.expect("ACL SETUSER default off", "+OK");
    let mut late = server.client();
    late.expect("PING", "-NOAUTH Authentication required.");
    late.expect("HELLO 3 AUTH root x SETNAME me", &root_hello(&server));
}

/// The answer of HELLO 3 to the next client.
fn root_hello(server: &Server) -> String {
    let mut client = server.client();
    let hello = client.call("HELLO 3 AUTH root x");
    // The clients' numbers differ.
    let at = hello.find("\"id\": :").expect("an id");
    let digits = hello[at + 7..].bytes().take_while(u8::is_ascii_digit).count();
    let id: u64 = hello[at + 7..at + 7 + digits].parse().expect("a number");
    format!("{}{}{}", &hello[..at + 7], id - 1, &hello[at + 7 + digits..])
}

#[test]
fn users_are_kept_in_files() {
    if foreign() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users.acl");
    fs::write(&file, "user u on >p ~a +@all\nuser default on nopass ~* &* +@all\n").unwrap();
    let server = Server::start_with(&["--aclfile", file.to_str().unwrap()]);
    let (mut admin, mut u) = (server.client(), as_user(&server, "u", "p"));
    u.expect("GET a", "(nil)");
    admin.expect("ACL SETUSER v on", "+OK");
    admin.expect("ACL SAVE", "+OK");
    let saved = fs::read_to_string(&file).unwrap();
    assert!(saved.starts_with("user default on nopass sanitize-payload ~* &* +@all\nuser u on "), "{saved}");
    assert!(saved.ends_with("\nuser v on sanitize-payload resetchannels -@all\n"), "{saved}");
    // A file with a mistake changes nothing.
    fs::write(&file, "user u on +foo\nuser w on\n").unwrap();
    let reply = admin.call("ACL LOAD");
    assert!(
        reply.starts_with("-ERR ") && reply.contains(":1: Error in applying operation '+foo'"),
        "{reply}"
    );
    admin.expect("ACL USERS", "[\"default\", \"u\", \"v\"]");
    // A user of the file stays, with new rights; the others' clients are closed.
    let mut v = server.client();
    admin.expect("ACL SETUSER v nopass +@all", "+OK");
    v.expect("AUTH v x", "+OK");
    fs::write(&file, "user u on >p ~b +@all\n").unwrap();
    admin.expect("ACL LOAD", "+OK");
    u.expect("GET a", KEY);
    u.expect("GET b", "(nil)");
    assert!(v.is_closed_within(PATIENCE));
    admin.expect("ACL USERS", "[\"default\", \"u\"]");
    fs::remove_file(&file).unwrap();
    assert!(admin.call("ACL LOAD").starts_with("-ERR Error loading ACLs, opening file"));
    u.expect("GET b", "(nil)");
    // Wrong at the start, and both ways at once.
    fs::write(&file, "user u on +foo\n").unwrap();
    let refused = said(&run(&["--port", &free_port().to_string(), "--aclfile", file.to_str().unwrap()]));
    assert!(refused.contains(":1: Error in applying operation"), "{refused}");
    fs::write(&file, "").unwrap();
    let refused = said(&run(&[
        "--port",
        &free_port().to_string(),
        "--aclfile",
        file.to_str().unwrap(),
        "--user",
        "a",
        "on",
    ]));
    assert!(refused.contains("choose one of them"), "{refused}");
    let plain = Server::start();
    assert!(plain.client().call("ACL SAVE").contains("not configured to use an ACL file"));
}

#[test]
fn users_of_the_configuration_are_written_back() {
    if foreign() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.conf");
    fs::write(&file, "# mine\nuser a on >p ~x +get\n").unwrap();
    let server = Server::start_file(&file);
    let (mut admin, mut a) = (server.client(), as_user(&server, "a", "p"));
    a.expect("GET x", "(nil)");
    a.expect("GET y", KEY);
    admin.expect("ACL SETUSER a ~y", "+OK");
    admin.expect("ACL SETUSER b on (~k +set)", "+OK");
    admin.expect("CONFIG REWRITE", "+OK");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("# mine\nuser a on sanitize-payload \"#"), "{text}");
    assert!(text.contains(" ~x ~y resetchannels -@all +get\n") && text.contains("\nuser b on "), "{text}");
    assert!(!text.contains("user default"), "{text}");
    let lines = admin.call("ACL LIST");
    drop(server);
    let again = Server::start_file(&file);
    again.client().expect("ACL LIST", &lines);
}

#[test]
fn http_tokens_name_users() {
    if foreign() {
        return;
    }
    let (_server, mut admin, at) = shown(&["--requirepass", "secret"]);
    admin.expect("SET item:1 {}", "+OK");
    admin.expect("SET item:2 {}", "+OK");
    admin.expect("ACL SETUSER u on >p:q %R~item:1 +evenkeel|items", "+OK");
    let mut http = Http::to(at);
    let mut ask = |target: &str, token: &str| {
        http.ask("GET", target, &format!("Authorization: Bearer {token}\r\n")).status
    };
    assert_eq!(ask("/items/1", "u:p:q"), 200);
    assert_eq!(ask("/items/2", "u:p:q"), 403);
    // A key that is forbidden does not tell whether it exists.
    assert_eq!(ask("/items/3", "u:p:q"), 403);
    assert_eq!(ask("/items?ids=1,2", "u:p:q"), 403);
    assert_eq!(ask("/metrics", "u:p:q"), 403);
    assert_eq!(ask("/items/2", "secret"), 200);
    assert_eq!(ask("/items/2", "default:secret"), 200);
    assert_eq!(ask("/metrics", "secret"), 200);
    for wrong in ["u:p", "u", "u:", ":secret", "v:p:q", "p:q"] {
        assert_eq!(ask("/items/1", wrong), 401, "{wrong}");
    }
    // The same token, after a change of users.
    assert_eq!(ask("/items/1", "u:p:q"), 200);
    admin.expect("ACL SETUSER u resetkeys", "+OK");
    assert_eq!(ask("/items/1", "u:p:q"), 403);
    admin.expect("ACL DELUSER u", ":1");
    let mut http = Http::to(at);
    assert_eq!(http.ask("GET", "/items/1", "Authorization: Bearer u:p:q\r\n").status, 401);
}
