//! `evenkeel load` and `evenkeel copy` that do not get to their end: stopped by a signal, or by a server that
//! takes nothing.

use crate::held::figure;
use crate::support::{PATIENCE, Server, foreign, said};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Starts the program with these words; its input is open for as long as the caller keeps it.
fn start(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program")
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(status.expect("kill").success());
}

fn until_ended(mut child: Child) -> Output {
    let _open = child.stdin.take();
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("its status").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}

/// A server that tells its version and then takes values. `answer` gives the reply for each by its number.
struct Scripted {
    place: String,
    /// Values answered.
    answered: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(answer: impl FnMut(usize) -> String + Send + 'static) -> Scripted {
        Scripted::with_ping(|| "+PONG\r\n".to_owned(), answer)
    }

    fn with_ping(
        ping: impl Fn() -> String + Send + Sync + 'static,
        answer: impl FnMut(usize) -> String + Send + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = format!("127.0.0.1:{}", listener.local_addr().expect("its address").port());
        let answered = Arc::new(AtomicUsize::new(0));
        let (count, answer, ping) = (answered.clone(), Arc::new(Mutex::new(answer)), Arc::new(ping));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (count, answer, ping) = (count.clone(), answer.clone(), ping.clone());
                std::thread::spawn(move || serve(&stream.expect("a client"), &count, &*ping, &answer));
            }
        });
        Scripted { place, answered }
    }
}

fn serve(
    mut stream: &TcpStream,
    count: &AtomicUsize,
    ping: &dyn Fn() -> String,
    answer: &Mutex<impl FnMut(usize) -> String>,
) {
    let mut input = BufReader::new(stream);
    while let Some(words) = command(&mut input) {
        let reply = match &words[0][..] {
            b"INFO" => {
                let text = "redis_version:7.0.0\r\n";
                format!("${}\r\n{text}\r\n", text.len())
            }
            b"PING" => ping(),
            b"COMMAND" => "*1\r\n*-1\r\n".to_owned(),
            _ => {
                let reply = answer.lock().expect("nobody panicked")(count.load(SeqCst));
                count.fetch_add(1, SeqCst);
                reply
            }
        };
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// The next command's words; None at the end of the connection.
fn command(input: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let number = |input: &mut dyn BufRead| {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    let words = number(input)?;
    let mut word = || {
        let mut bytes = vec![0; number(input)? + 2];
        input.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        Some(bytes)
    };
    (0..words).map(|_| word()).collect()
}

/// Answers OK, but at value `at` sends a notice and waits for permission to go on.
fn pausing_at(at: usize) -> (impl FnMut(usize) -> String + Send, Receiver<()>, Sender<()>) {
    let (there, arrived) = channel();
    let (go_on, may) = channel::<()>();
    let answer = move |n| {
        if n == at {
            let _ = there.send(());
            let _ = may.recv();
        }
        "+OK\r\n".to_owned()
    };
    (answer, arrived, go_on)
}

const ROWS: usize = 50_000;

fn many_rows(folder: &Path) -> String {
    let path = folder.join("rows.txt");
    let rows: String = (0..ROWS).map(|n| format!("row{n}\n")).collect();
    std::fs::write(&path, rows).expect("written");
    path.display().to_string()
}

#[test]
fn a_signal_ends_a_load_in_order() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (rows, state) = (many_rows(folder.path()), folder.path().join("state"));
    let state = state.display().to_string();
    let (answer, arrived, go_on) = pausing_at(1000);
    let scripted = Scripted::new(answer);
    let args = |to| {
        let key = ["--key", "k:{line}", "--as", "string", "--value", "line", "--connections", "1"];
        [["load", rows.as_str(), "--to", to, "--resume", &state].as_slice(), &key].concat()
    };
    let child = start(&args(&scripted.place));
    arrived.recv_timeout(PATIENCE).expect("some rows come");
    signal(&child, "TERM");
    go_on.send(()).expect("it waits");
    let output = until_ended(child);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(143), "{text}");
    // The run waited for the replies to all it had sent, and saved that.
    let answered = scripted.answered.load(SeqCst);
    assert!((1000..ROWS).contains(&answered), "{answered}");
    assert!(text.contains("interrupted by SIGTERM"), "{text}");
    assert!(
        text.contains(&format!("the same command goes on behind line {answered}\n")),
        "{answered}: {text}"
    );
    let server = Server::start();
    let output = until_ended(start(&args(&format!("127.0.0.1:{}", server.addr.port()))));
    assert!(output.status.success(), "{}", said(&output));
    server.client().expect("DBSIZE", &format!(":{}", ROWS - answered));
    server.client().expect(&format!("EXISTS k:row{answered} k:row{}", answered - 1), ":1");
}

#[test]
fn a_second_signal_ends_a_load_at_once() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let rows = many_rows(folder.path());
    let (answer, arrived, _never) = pausing_at(10);
    let scripted = Scripted::new(answer);
    let child = start(&[
        "load",
        &rows,
        "--to",
        &scripted.place,
        "--key",
        "k:{line}",
        "--as",
        "string",
        "--value",
        "line",
    ]);
    arrived.recv_timeout(PATIENCE).expect("some rows come");
    signal(&child, "INT");
    signal(&child, "TERM");
    // The server is silent, so the run could not end in order. If both signals wait when the process runs
    // again, either is the second.
    let output = until_ended(child);
    assert!(matches!(output.status.code(), Some(130 | 143)), "{}", said(&output));
    assert!(!said(&output).contains("interrupted"), "{}", said(&output));
}

#[test]
fn a_signal_ends_a_load_that_waits_for_its_input() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let to = format!("127.0.0.1:{}", server.addr.port());
    let before = figure(&mut client, "total_connections_received");
    let child = start(&[
        "load", "-", "--format", "lines", "--to", &to, "--key", "k:{line}", "--as", "string", "--value",
        "line",
    ]);
    let deadline = Instant::now() + PATIENCE;
    // It asks what the server takes, and then has no connection before there are rows.
    while figure(&mut client, "total_connections_received") == before {
        assert!(Instant::now() < deadline, "it does not connect");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "INT");
    let output = until_ended(child);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(said(&output).contains("interrupted by SIGINT"), "{}", said(&output));
}

/// The command's words that load each row as a key of its own.
const STRINGS: [&str; 6] = ["--key", "k:{line}", "--as", "string", "--value", "line"];

fn load_until_ended(rows: &Path, to: &str, more: &[&str]) -> (Option<i32>, String) {
    let rows = rows.display().to_string();
    let output = until_ended(start(&[&["load", &rows, "--to", to][..], &STRINGS, more].concat()));
    (output.status.code(), said(&output))
}

/// Also with --on-error skip: the rows behind would fare no better. Nothing is lost.
#[test]
fn a_server_that_takes_nothing_ends_a_load_and_is_told() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (path, state) = (folder.path().join("rows.txt"), folder.path().join("state"));
    std::fs::write(&path, "a\nb\nc\nd\n").expect("written");
    let more = ["--on-error", "skip", "--resume", &state.display().to_string()];
    for (error, advice) in [
        ("MOVED 3999 127.0.0.1:6381", "a node of a cluster"),
        ("ASK 3999 127.0.0.1:6381", "a node of a cluster"),
        ("CLUSTERDOWN Hash slot not served", "CLUSTER INFO"),
        ("READONLY You can't write against a read only replica.", "name its primary"),
        ("NOAUTH Authentication required.", "see --password"),
        ("NOPERM this user has no permissions", "has no right"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "see maxmemory"),
        ("MISCONF Errors writing to the AOF file", "look into its log"),
        ("LOADING Redis is loading the dataset in memory", "try again"),
    ] {
        let _ = std::fs::remove_file(&state);
        let answer = move |n| if n < 2 { "+OK\r\n".to_owned() } else { format!("-{error}\r\n") };
        let (code, text) = load_until_ended(&path, &Scripted::new(answer).place, &more);
        assert_eq!(code, Some(1), "{error}: {text}");
        assert!(text.contains(error) && text.contains(advice), "{text}");
        // Rows that were not taken do not count as done, and taken ones are no error.
        assert!(text.contains("goes on behind line 0"), "{text}");
        let there = |n| if n < 2 { "$-1\r\n" } else { "+OK\r\n" }.to_owned();
        let (code, text) = load_until_ended(
            &path,
            &Scripted::new(there).place,
            &[&more[..], &["--connections", "1"]].concat(),
        );
        assert_eq!(code, Some(0), "{error}: {text}");
        assert!(text.contains("2 rows as 2 values") && text.contains("2 were there already"), "{text}");
    }
}

/// A real Redis gives the answers of the scripted one above; once mended, it gets the rows.
#[test]
fn a_real_redis_that_takes_nothing_is_mended_and_loaded() {
    if foreign() {
        return;
    }
    let Some(redis) = Server::redis(&[]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (path, to) = (folder.path().join("rows.txt"), format!("127.0.0.1:{}", redis.addr.port()));
    std::fs::write(&path, "a\nb\nc\nd\n").expect("written");
    let mut client = redis.client();
    for (i, (broken, mended, word)) in [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY"),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"),
        ("CONFIG SET min-replicas-to-write 3", "CONFIG SET min-replicas-to-write 0", "NOREPLICAS"),
        ("ACL SETUSER default -set", "ACL SETUSER default +set", "NOPERM"),
        ("CONFIG SET requirepass secret", "CONFIG SET requirepass \"\"", "NOAUTH"),
    ]
    .into_iter()
    .enumerate()
    {
        let state = folder.path().join(format!("state{i}")).display().to_string();
        let more = ["--on-error", "skip", "--resume", &state];
        client.expect("FLUSHALL", "+OK");
        client.expect(broken, "+OK");
        let (code, text) = load_until_ended(&path, &to, &more);
        assert!(code == Some(1) && text.contains(word), "{text}");
        client.expect(mended, "+OK");
        let (code, text) = load_until_ended(&path, &to, &more);
        assert!(code == Some(0) && text.contains("4 rows as 4 values"), "{word}: {text}");
        client.expect("DBSIZE", ":4");
    }
}

#[test]
fn a_real_node_of_a_cluster_is_told_and_loaded_once_it_has_all_slots() {
    if foreign() {
        return;
    }
    let Some(node) = Server::redis(&["--cluster-enabled", "yes"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (path, to) = (folder.path().join("rows.txt"), format!("127.0.0.1:{}", node.addr.port()));
    std::fs::write(&path, "a\nb\nc\nd\n").expect("written");
    let state = folder.path().join("state").display().to_string();
    let more = ["--on-error", "skip", "--resume", &state];
    let (code, text) = load_until_ended(&path, &to, &more);
    assert!(code == Some(1) && text.contains("CLUSTERDOWN") && text.contains("CLUSTER INFO"), "{text}");
    let mut client = node.client();
    client.expect("CLUSTER ADDSLOTSRANGE 0 16383", "+OK");
    let deadline = Instant::now() + PATIENCE;
    while !client.call("CLUSTER INFO").contains("cluster_state:ok") {
        assert!(Instant::now() < deadline, "the cluster is not up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (code, text) = load_until_ended(&path, &to, &more);
    assert!(code == Some(0) && text.contains("4 rows as 4 values"), "{text}");
    client.expect("DBSIZE", ":4");
    // A copy from it meets the same, and names it.
    let other = Server::start();
    client.expect("CLUSTER DELSLOTSRANGE 0 16383", "+OK");
    let place = format!("127.0.0.1:{}", other.addr.port());
    let output = until_ended(start(&["copy", "--from", &to, "--to", &place, "--on-error", "skip"]));
    let text = said(&output);
    assert!(
        output.status.code() == Some(1) && text.contains(&format!("{to} answers 'CLUSTERDOWN")),
        "{text}"
    );
    other.client().expect("DBSIZE", ":0");
}

#[test]
fn a_server_that_loads_its_data_is_waited_for_but_not_for_ever() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.txt");
    std::fs::write(&path, "a\nb\nc\nd\n").expect("written");
    let loading = "-LOADING Redis is loading the dataset in memory\r\n".to_owned();
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, answer) = (asked.clone(), loading.clone());
    let for_a_while = Scripted::with_ping(
        move || if count.fetch_add(1, SeqCst) < 3 { answer.clone() } else { "+PONG\r\n".to_owned() },
        |_| "+OK\r\n".to_owned(),
    );
    let (code, text) = load_until_ended(&path, &for_a_while.place, &[]);
    assert!(code == Some(0) && text.contains("4 rows as 4 values"), "{text}");
    assert!(asked.load(SeqCst) > 3);
    let for_ever = Scripted::with_ping(move || loading.clone(), |_| "+OK\r\n".to_owned());
    let deadline = Instant::now() + PATIENCE;
    let (code, text) = loop {
        let (code, text) = load_until_ended(&path, &for_ever.place, &["--timeout", "1"]);
        // On a slow machine an answer may come too late.
        if !text.contains("does not answer") || Instant::now() > deadline {
            break (code, text);
        }
    };
    assert!(code == Some(1) && text.contains("LOADING") && text.contains("try again"), "{text}");
}
