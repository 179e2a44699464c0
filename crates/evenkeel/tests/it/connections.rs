//! Accepting, closing and moving connections, and the server's knowledge of them.

use crate::support::{Client, PATIENCE, Server, encode, encode_line, foreign};
use crate::waits::until;
use std::time::{Duration, Instant};

#[test]
fn more_clients_than_maxclients_are_told_so_and_closed() {
    let server = Server::start_with(&["--maxclients", "5"]);
    let mut clients: Vec<Client> = (0..5).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.expect("PING", "+PONG"));
    let mut sixth = server.client();
    sixth.expect_reply("-ERR max number of clients reached");
    sixth.expect_reply("(closed)");
    clients.pop();
    until("the place of a client that left is given to another", || {
        let mut next = server.client();
        next.send_if_open(encode_line("PING"));
        next.reply() == "+PONG"
    });
}

/// No first request of a crowd is lost, overtaken by its client's next bytes, or forgotten when its client
/// leaves. All clients that left are gone.
#[test]
fn a_crowd_that_comes_asks_and_leaves_at_once_is_answered() {
    const CROWD: usize = 300;
    for backend in ["io_uring", "epoll"] {
        let server = Server::start_with(&["--io-backend", backend]);
        let mut here = server.client();
        let mut crowd: Vec<Client> = (0..CROWD).map(|_| server.client()).collect();
        for (n, client) in crowd.iter_mut().enumerate() {
            let mut first = encode_line(&format!("SET crowd:{n:03} v{n}"));
            first.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
            client.send(first);
        }
        here.expect("PING", "+PONG");
        for (n, client) in crowd.iter_mut().enumerate() {
            client.send(format!("$9\r\ncrowd:{n:03}\r\n"));
            if n % 2 == 0 {
                client.end_sending();
            }
        }
        for (n, client) in crowd.iter_mut().enumerate() {
            client.expect_reply("+OK");
            client.expect_reply(&format!("\"v{n}\""));
            if n % 2 == 0 {
                client.expect_reply("(closed)");
            } else {
                client.expect("PING", "+PONG");
            }
        }
        // Others leave with unread replies, and after a request whose reply they do not wait for.
        crowd.iter_mut().skip(1).step_by(2).for_each(|client| client.send(encode_line("INCR left")));
        drop(crowd);
        let left = (CROWD / 2).to_string();
        for wanted in ["connected_clients:1\\r\\n", &left] {
            let line = if wanted == left { "GET left" } else { "INFO clients" };
            for _ in 0..3000 {
                if here.call(line).contains(wanted) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let answer = here.call(line);
            assert!(answer.contains(wanted), "{backend}: {answer}");
        }
    }
}

/// Everything that comes while the loop is away comes at once. Clients that left meanwhile are heard whole,
/// however late, but one that waited in a command takes nothing any more.
#[test]
fn many_who_go_at_once_are_heard_whole_and_take_nothing() {
    if foreign() {
        return;
    }
    const CROWD: usize = 200;
    for backend in ["io_uring", "epoll"] {
        let server = Server::start_with(&["--io-backend", backend, "--event-loops", "1"]);
        let (mut here, mut holder) = (server.client(), server.client());
        let mut crowd: Vec<Client> = (0..CROWD).map(|_| server.client()).collect();
        crowd.iter_mut().for_each(|client| client.expect("PING", "+PONG"));
        let mut waiting: Vec<Client> = (0..CROWD / 4).map(|_| server.client()).collect();
        waiting.iter_mut().for_each(|client| client.send(encode_line("BLPOP jobs 0")));
        let waiters = format!("blocked_clients:{}\\r", waiting.len());
        until("all wait", || here.call("INFO clients").contains(&waiters));
        here.expect("DEBUG POINT loop DELAY 200000", "+OK");
        holder.send(encode_line("DEBUG STALL"));
        // More than is read at once, and nothing at all.
        let value = vec![b'v'; 40_000];
        for (n, client) in crowd.iter_mut().enumerate().filter(|(n, _)| n % 2 == 0) {
            client.request(&[b"SET", format!("crowd:{n}").as_bytes(), &value]);
            client.send(encode_line("INCR left"));
        }
        drop((crowd, waiting));
        here.expect("RPUSH jobs a", ":1");
        here.expect("LLEN jobs", ":1");
        holder.expect_reply("+OK");
        until("all are gone", || here.call("INFO clients").contains("connected_clients:2\\r"));
        here.expect("GET left", &format!("\"{}\"", CROWD / 2));
        for n in (0..CROWD).step_by(2) {
            here.expect(&format!("STRLEN crowd:{n}"), ":40000");
        }
    }
}

/// Most bytes of clients that have sent much stand behind others' requests. None is overtaken by its client's
/// later bytes, or lost when the client leaves.
#[test]
fn what_stands_behind_others_requests_stays_in_order() {
    if foreign() {
        return;
    }
    const MANY: usize = 16;
    const EACH: usize = 800;
    const ROUNDS: usize = 12;
    for backend in ["io_uring", "epoll"] {
        let server = Server::start_with(&["--io-backend", backend, "--event-loops", "1"]);
        let (mut here, mut holder) = (server.client(), server.client());
        let mut many = Vec::new();
        for round in 0..ROUNDS {
            // A connection that has sent much before is read in another way.
            if round % 4 != 3 {
                many = (0..MANY).map(|_| server.client()).collect();
                many.iter_mut().for_each(|client: &mut Client| client.expect("PING", "+PONG"));
            }
            here.expect("DEBUG POINT loop DELAY 50000", "+OK");
            holder.send(encode_line("DEBUG STALL"));
            std::thread::scope(|scope| {
                for (n, client) in many.iter_mut().enumerate() {
                    scope.spawn(move || {
                        let asked = (0..EACH).flat_map(|i| {
                            // Words longer than what is read at once, too.
                            let long = if i % 400 == 7 { 30_000 } else { i % 90 };
                            encode(&[b"ECHO", format!("{n}:{round}:{i}:{}", "x".repeat(long)).as_bytes()])
                        });
                        client.send(asked.collect::<Vec<u8>>());
                        client.send(encode_line(&format!("INCR done:{n}")));
                        for i in 0..EACH {
                            let long = if i % 400 == 7 { 30_000 } else { i % 90 };
                            client.expect_reply(&format!("\"{n}:{round}:{i}:{}\"", "x".repeat(long)));
                        }
                        client.expect_reply(&format!(":{}", round + 1));
                    });
                }
            });
            holder.expect_reply("+OK");
        }
        // The clients leave, and what they had sent is heard.
        holder.send(encode_line("DEBUG STALL"));
        for (n, client) in many.iter_mut().enumerate() {
            // A reply to a client that has left would end the connection before it is heard whole.
            client.send(encode_line("CLIENT REPLY OFF"));
            client.send(encode_line("PING").repeat(5000));
            client.send(encode_line(&format!("INCR done:{n}")));
        }
        drop(many);
        holder.expect_reply("+OK");
        until("all are gone", || here.call("INFO clients").contains("connected_clients:2\\r"));
        for n in 0..MANY {
            here.expect(&format!("GET done:{n}"), &format!("\"{}\"", ROUNDS + 1));
        }
    }
}

/// Clients that talk at once, each from a thread of its own.
const CLIENTS: usize = 6;

/// Connections that move from loop to loop all the time lose nothing and repeat nothing, and mail finds them.
#[test]
fn who_moves_from_loop_to_loop_is_served_like_everybody() {
    const ROUNDS: usize = 150;
    for backend in ["io_uring", "epoll"] {
        if foreign() {
            return;
        }
        let server = Server::start_with(&["--io-backend", backend, "--event-loops", "3"]);
        let mut here = server.client();
        here.expect("DEBUG POINT move DELAY 1", "+OK");
        std::thread::scope(|scope| {
            for n in 0..CLIENTS {
                let server = &server;
                scope.spawn(move || talk(server.client(), n, ROUNDS));
            }
        });
        // Killed while they move and ask: the letter may be behind them, or be there before them.
        for _ in 0..100 {
            let mut victim = server.client();
            let id = victim.call("CLIENT ID").trim_start_matches(':').to_owned();
            (0..40).for_each(|_| victim.send(encode_line("PING")));
            here.expect(&format!("CLIENT KILL ID {id}"), ":1");
            until("it is gone", || !here.call("CLIENT LIST").contains(&format!("id={id} ")));
        }
        let info = here.call("INFO evenkeel");
        let moved = info.split("connections_moved:").nth(1).and_then(|rest| rest.split("\\r").next());
        assert!(moved.is_some_and(|n| n.parse::<usize>().is_ok_and(|n| n > ROUNDS)), "{backend}: {info}");
    }
}

/// Requests in pieces, pipelines, transactions, waits and large replies; every reply must be the right one.
fn talk(mut client: Client, n: usize, rounds: usize) {
    let large = vec![b'a' + n as u8; 300_000];
    for round in 0..rounds {
        let mut bytes = Vec::new();
        for i in 0..round % 20 {
            bytes.extend(encode_line(&format!("INCR n:{n}")));
            bytes.extend(encode_line(&format!("ECHO {n}:{round}:{i}")));
        }
        let cut = bytes.len() * (round % 7) / 7;
        client.send(&bytes[..cut]);
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        client.send(&bytes[cut..]);
        for i in 0..round % 20 {
            assert!(client.reply().starts_with(':'));
            client.expect_reply(&format!("\"{n}:{round}:{i}\""));
        }
        match round % 6 {
            0 => {
                client.request(&[b"SET", format!("v:{n}").as_bytes(), &large]);
                client.expect_reply("+OK");
                client.send(encode_line(&format!("GET v:{n}")));
                assert_eq!(client.raw(9), b"$300000\r\n");
                assert!(client.raw(300_000) == large, "{n} {round}");
                assert_eq!(client.raw(2), b"\r\n");
            }
            1 => {
                client.expect(&format!("WATCH w:{n}"), "+OK");
                client.expect(&format!("INCR w:{n}"), &format!(":{}", round / 6 * 2 + 1));
                client.expect("MULTI", "+OK");
                client.expect(&format!("INCR w:{n}"), "+QUEUED");
                client.expect("EXEC", "(nil array)");
                client.expect("MULTI", "+OK");
                client.expect(&format!("INCR w:{n}"), "+QUEUED");
                client.expect("EXEC", &format!("[:{}]", round / 6 * 2 + 2));
            }
            2 => {
                assert!(client.call(&format!("RPUSH q:{} {round}", (n + 1) % CLIENTS)).starts_with(':'));
                client.expect(&format!("BLPOP q:{n} 0"), &format!("[\"q:{n}\", \"{round}\"]"));
            }
            3 => {
                client.expect("SELECT 1", "+OK");
                client.expect(&format!("SET d:{n} {round}"), "+OK");
                client.expect(&format!("GET d:{n}"), &format!("\"{round}\""));
                client.expect("SELECT 0", "+OK");
            }
            4 => {
                client.expect(&format!("SUBSCRIBE c:{n}"), &format!("[\"subscribe\", \"c:{n}\", :1]"));
                client.expect(&format!("UNSUBSCRIBE c:{n}"), &format!("[\"unsubscribe\", \"c:{n}\", :0]"));
            }
            _ => client.expect("EVAL return{KEYS[1],1} 1 k", "[\"k\", :1]"),
        }
    }
}

/// Requests of known clients go before the first requests of new ones, even if those came earlier.
#[test]
fn a_crowd_that_arrives_waits_for_itself() {
    if foreign() {
        return;
    }
    const CROWD: usize = 100;
    for backend in ["io_uring", "epoll"] {
        let server = Server::start_with(&["--event-loops", "2", "--io-backend", backend]);
        server.client().expect("DEBUG POINT accept HOLD 0", "+OK");
        // All others are on the second loop.
        let mut control = server.client();
        control.expect("DEBUG POINT accept HOLD 1000", "+OK");
        let (mut here, mut culprit) = (server.client(), server.client());
        culprit.expect("PING", "+PONG");
        let mut crowd: Vec<Client> = (0..CROWD).map(|_| server.client()).collect();
        until("all are accepted", || {
            control.call("INFO clients").contains(&format!("connected_clients:{}\\r", CROWD + 3))
        });
        (0..20).for_each(|_| here.expect("PING", "+PONG"));
        control.expect("DEBUG POINT loop HOLD 1", "+OK");
        culprit.send(encode_line("DEBUG STALL"));
        until("the loop is held up", || control.call("DEBUG POINT loop") == ":1");
        crowd.iter_mut().for_each(|client| client.send(encode_line("INCR order")));
        here.send(encode_line("INCR order"));
        control.expect("DEBUG POINT loop OFF", "+OK");
        // One slice of long work, for which a fraction of them is too many, may come before.
        let place: usize = here.reply().trim_start_matches(':').parse().expect("a place");
        assert!(place <= CROWD / 2, "{backend}: {place}");
        crowd.iter_mut().for_each(|client| drop(client.reply()));
        here.expect("GET order", &format!("\"{}\"", CROWD + 1));
    }
}

#[test]
fn idle_clients_are_closed_after_the_timeout_and_busy_ones_are_not() {
    let server = Server::start();
    let mut idle = server.client();
    let mut busy = server.client();
    let mut subscriber = server.client();
    let mut blocked = server.client();
    idle.expect("PING", "+PONG");
    subscriber.expect("SUBSCRIBE c", r#"["subscribe", "c", :1]"#);
    blocked.send(encode_line("BLPOP nosuch 0"));
    until("it waits", || busy.call("INFO clients").contains("blocked_clients:1"));
    busy.expect("CONFIG SET timeout 2", "+OK");
    let mut served = 0;
    while served < 10 {
        let since = Instant::now();
        std::thread::sleep(Duration::from_millis(500));
        busy.send_if_open(encode_line("PING"));
        let reply = busy.reply();
        if reply == "(closed)" && since.elapsed() > Duration::from_secs(2) {
            // This thread was away for so long that the client was idle.
            (busy, served) = (server.client(), 0);
            continue;
        }
        assert_eq!(reply, "+PONG");
        served += 1;
    }
    assert!(idle.is_closed_within(PATIENCE), "an idle client stays");
    let mut busy = server.client();
    busy.expect("CONFIG SET timeout 0", "+OK");
    busy.expect("PUBLISH c hello", ":1");
    subscriber.expect_reply(r#"["message", "c", "hello"]"#);
    busy.expect("RPUSH nosuch x", ":1");
    blocked.expect_reply(r#"["nosuch", "x"]"#);
}

#[test]
fn a_unix_socket_serves_like_a_port() {
    let server = Server::start_with(&["--unixsocket", "{dir}/socket", "--unixsocketperm", "700"]);
    let path = server.dir.path().join("socket");
    let mut client = Client::unix(&path);
    client.expect("SET k v", "+OK");
    server.client().expect("GET k", "\"v\"");
    let list = client.call("CLIENT LIST");
    assert!(list.contains("socket:0"), "{list}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&path).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_password_keeps_commands_out_until_it_is_given() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let mut client = server.client();
    client.expect("GET k", "-NOAUTH Authentication required.");
    client.expect("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.");
    assert!(
        client
            .call("HELLO 3")
            .starts_with("-NOAUTH HELLO must be called with the client already authenticated")
    );
    client.expect("AUTH secret", "+OK");
    client.expect("GET k", "(nil)");
    let mut client = server.client();
    assert!(client.call("HELLO 3 AUTH default secret").starts_with('{'));
    client.expect("GET k", "(null)");
}

#[test]
fn hundreds_of_clients_are_served_side_by_side() {
    let server = Server::start();
    let mut clients: Vec<Client> = (0..400).map(|_| server.client()).collect();
    for round in 0..3 {
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(encode_line(&format!("SET k{at} {round}")));
            client.send(encode_line(&format!("GET k{at}")));
        }
        for client in &mut clients {
            client.expect_reply("+OK");
            client.expect_reply(&format!("\"{round}\""));
        }
    }
    clients[0].expect("DBSIZE", ":400");
}

#[test]
fn a_killed_client_is_closed_and_others_are_not() {
    let server = Server::start();
    let (mut killer, mut victim) = (server.client(), server.client());
    let id = victim.call("CLIENT ID");
    killer.expect(&format!("CLIENT KILL ID {}", &id[1..]), ":1");
    assert!(victim.is_closed_within(PATIENCE));
    killer.expect("CLIENT KILL 127.0.0.1:1", "-ERR No such client");
    killer.expect("PING", "+PONG");
}

#[test]
fn paused_writes_wait_and_reads_do_not() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    client.expect("GET k", "(nil)");
    client.send(encode_line("SET k v"));
    assert_eq!(client.reply_within(Duration::from_millis(150)), None);
    admin.expect("CLIENT UNPAUSE", "+OK");
    client.expect_reply("+OK");
}

/// Input is accepted, refused and accepted again while it comes: none of it overtakes the rest.
#[test]
fn large_values_in_a_pipeline_are_stored_as_they_were_sent() {
    const VALUES: usize = 40;
    const WORDS: usize = 16_000;
    // Every word says where it belongs.
    let value =
        |i: usize| (0..WORDS).flat_map(|j| ((i * WORDS + j) as u64).to_be_bytes()).collect::<Vec<u8>>();
    let server = Server::start();
    for round in 0..6 {
        let requests: Vec<u8> = (0..VALUES)
            .flat_map(|i| encode(&[b"SET", format!("k{i}").as_bytes(), &value(i + round)]))
            .collect();
        let mut client = server.client();
        client.send(&requests);
        (0..VALUES).for_each(|_| client.expect_reply("+OK"));
        for i in 0..VALUES {
            client.request(&[b"GET", format!("k{i}").as_bytes()]);
            let head = format!("${}\r\n", WORDS * 8);
            let reply = client.raw(head.len() + WORDS * 8 + 2);
            assert!(reply[head.len()..].starts_with(&value(i + round)), "value {i} of round {round}");
        }
    }
}
