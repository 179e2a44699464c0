//! `evenkeel bench`: what it writes, what it refuses, what it leaves behind. No figure is compared with a time.

use crate::support::{PATIENCE, Server, binary, foreign, free_port, run, said};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The words of all runs here: small data, short times.
const SMALL: [&str; 4] = ["--keys", "2000", "--seconds", "0.2"];

fn place(server: &Server) -> String {
    format!("127.0.0.1:{}", server.addr.port())
}

fn bench(words: &[&str]) -> Output {
    run(&[&["bench"][..], words, &SMALL].concat())
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file is there")).expect("it is JSON")
}

/// The keys of the benchmark on a server, in all of its databases.
fn keys(server: &Server) -> String {
    server.client().call("DBSIZE")
}

#[test]
fn every_story_is_measured_beside_another_server_and_leaves_no_key() {
    if foreign() {
        return;
    }
    let (one, other) = (Server::start(), Server::start());
    let folder = tempfile::tempdir().expect("a folder");
    let [json, html, md] = ["json", "html", "md"].map(|ending| folder.path().join(format!("out.{ending}")));
    let [json_word, html_word, md_word] = [&json, &html, &md].map(|path| path.to_str().expect("UTF-8"));
    let files = ["--json", json_word, "--html", html_word, "--md", md_word];
    let words = ["all", "save", "--against", &place(&one), "--beside", &place(&other), "--rounds", "2"];
    let output = bench(&[&words[..], &files, &["--seed", "7"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!([keys(&one), keys(&other)], [":0", ":0"]);
    let found = read(&json);
    assert_eq!(found["schema"], 1);
    assert_eq!(found["targets"][1]["address"], place(&other).as_str());
    assert_eq!(found["targets"][0]["name"], "Evenkeel");
    assert!(found["machine"].as_str().is_some_and(|machine| machine.contains("Linux")));
    let stories = found["stories"].as_array().expect("a list");
    let names: Vec<&str> = stories.iter().filter_map(|story| story["story"].as_str()).collect();
    let all = [
        "nobody",
        "blacklist",
        "items",
        "copy",
        "resize",
        "batch",
        "script",
        "keys",
        "save",
        "throughput",
        "memory",
    ];
    assert_eq!(names, all);
    for story in stories {
        let name = story["story"].as_str().expect("a name");
        assert_eq!(story["results"].as_array().map(Vec::len), Some(2), "{name}");
        for result in story["results"].as_array().into_iter().flatten() {
            assert_eq!(result["error"], Value::Null, "{name}");
            let figure = |name: &str| result["figures"][name].as_f64();
            match name {
                "throughput" => assert!(figure("get_pipelined_per_s").is_some_and(|n| n > 0.0)),
                "memory" => assert!(figure("string_bytes").is_some_and(|n| n > 10.0)),
                _ => {
                    let at = ["p50_ms", "p99_ms", "p999_ms", "max_ms"].map(|name| figure(name).expect(name));
                    assert!(at[0] > 0.0 && at.is_sorted(), "{name}: {at:?}");
                    assert!(figure("gets").is_some_and(|n| n > 0.0), "{name}");
                    assert_eq!(figure("errors"), Some(0.0), "{name}");
                    assert!(result["series"].as_array().is_some_and(|series| !series.is_empty()), "{name}");
                    assert_eq!(result["percentiles"].as_array().map(Vec::len), Some(12), "{name}");
                    let buckets = result["histogram_ns"].as_array().expect("buckets");
                    let counts = buckets.iter().filter_map(|bucket| bucket[1].as_u64());
                    assert_eq!(Some(counts.sum::<u64>() as f64), figure("gets"), "{name}");
                    let ends: Vec<u64> = buckets.iter().filter_map(|bucket| bucket[0].as_u64()).collect();
                    assert!(ends.is_sorted() && ends.len() == buckets.len(), "{name}: {ends:?}");
                }
            }
        }
        let sentence = story["sentence"].as_str().expect("a sentence");
        let is_ratio_first =
            sentence.contains(" times ") && sentence.find(" times ") < sentence.find("ne client");
        assert!(is_ratio_first, "{sentence}");
    }
    assert_eq!(found["seed"], 7);
    let page = std::fs::read_to_string(&md).expect("the page");
    assert!(page.starts_with("**") && page.contains("\n| another client's GET"), "{page}");
    assert!(
        page.contains("\nevenkeel bench copy --keys 2000 --seconds 0.2 --rounds 2 --seed 7 --against"),
        "{page}"
    );
    assert!(said(&output).starts_with(found["sentence"].as_str().expect("a sentence")), "{}", said(&output));
    check_page(
        &std::fs::read_to_string(&html).expect("the page"),
        found["sentence"].as_str().expect("a sentence"),
    );
}

/// Tags are closed in order, and nothing is loaded or run.
fn check_page(page: &str, sentence: &str) {
    assert!(page.starts_with("<!DOCTYPE html>\n<html"));
    assert!(page.contains(&format!("<h1>{sentence}</h1>")), "the sentence comes first");
    assert!(page.contains("prefers-color-scheme:dark"));
    assert!(page.contains("<polyline") && page.contains("Evenkeel") && page.contains("Linux"));
    for outside in
        ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link", "<iframe", "NaN"]
    {
        assert!(!page.contains(outside), "{outside}");
    }
    let mut open = Vec::new();
    for tag in page.split('<').skip(1).map(|rest| rest.split('>').next().expect("the end of a tag")) {
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        match (tag.starts_with('/'), tag.starts_with('!') || tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{tag}"),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn without_an_address_it_starts_a_server_and_ends_it() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let words = ["copy", "rows", "--json", json.to_str().expect("UTF-8")];
    let mut command = Command::new(binary());
    let output =
        command.arg("bench").args(words).args(SMALL).env("TMPDIR", folder.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    let found = read(&json);
    assert_eq!(found["targets"][0]["own"], true);
    let rows = &found["stories"][1];
    let figure = |name: &str| rows["results"][0]["figures"][name].as_f64();
    assert_eq!(rows["story"], "rows");
    assert!(figure("first_reads_per_s").is_some_and(|n| n > 0.0), "{rows}");
    assert!(figure("requests_per_s").is_some_and(|n| n > 0.0), "{rows}");
    let address = found["targets"][0]["address"].as_str().expect("an address");
    assert!(TcpStream::connect(address).is_err(), "it still listens");
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).expect("the folder").flatten().map(|entry| entry.path()).collect();
    assert_eq!(left, [json], "its folder is gone");
}

#[test]
fn a_server_with_keys_is_left_alone_unless_the_user_says_yes() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("SELECT 3", "+OK");
    client.expect("SET user:1 precious", "+OK");
    let output = bench(&["copy", "--against", &place(&server)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("holds 1 keys: say --yes"), "{}", said(&output));
    assert_eq!(keys(&server), ":0", "database 0 is empty");
    assert!(!server.client().call("INFO commandstats").contains("cmdstat_rpush"));
    let output = bench(&["copy", "resize", "--yes", "--against", &format!("redis://{}/3", place(&server))]);
    assert!(output.status.success(), "{}", said(&output));
    client.expect("KEYS *", r#"["user:1"]"#);
    client.expect("GET user:1", "\"precious\"");
}

#[test]
fn an_expectation_that_does_not_hold_is_the_exit_code_and_the_last_sentence() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let address = place(&server);
    let output =
        bench(&["copy", "--against", &address, "--expect", "copy.p999_ms>0", "--expect", "copy.gets>=1"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("copy.p999_ms>0 holds"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("expected");
    std::fs::write(&file, "# what must hold\n\ncopy.gets >= 1\ncopy.max_ms < 0 # never\n").expect("written");
    let output = bench(&["copy", "--against", &address, "--expect", file.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.starts_with("copy.max_ms < 0 does not hold: it is ") && errors.lines().count() == 1,
        "{errors}"
    );
    assert_eq!(keys(&server), ":0");
    for (wrong, why) in [
        ("copy.p999_ms", "no expression"),
        ("copies.p999_ms<1", "no story is called 'copies'"),
        ("save.save_s<1", "not among the stories"),
    ] {
        let output = bench(&["copy", "--against", &address, "--expect", wrong]);
        assert!(output.status.code() == Some(1) && said(&output).contains(why), "{wrong}: {}", said(&output));
    }
}

#[test]
fn a_server_that_may_not_be_written_to_is_refused_with_the_reason() {
    if foreign() {
        return;
    }
    let refused = |server: &Server, why: &str| {
        let output = bench(&["copy", "--against", &place(server)]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(why), "{}", said(&output));
        assert!(!said(&output).contains("panicked"));
    };
    let primary = Server::start_with(&["--requirepass", "s3cret"]);
    refused(&primary, "it wants a password");
    let address = format!("redis://:s3cret@{}", place(&primary));
    let output = bench(&["copy", "--against", &address]);
    assert!(output.status.success() && !said(&output).contains("s3cret"), "{}", said(&output));
    let replica = Server::start();
    replica.client().expect("REPLICAOF 127.0.0.1 1", "+OK");
    refused(&replica, "is a replica");
    let full = Server::start_with(&["--maxmemory", "16mb"]);
    refused(&full, "has too little memory: the stories need 65 MB");
    refused(&Server::start_with(&["--rename-command", "SET", ""]), "refused SET");
    if let Some(node) = Server::redis(&["--cluster-enabled", "yes"]) {
        refused(&node, "is a node of a cluster");
    }
}

/// Answers each connection with `reply` for each chunk that comes, `times` times, and closes it then.
fn hostile(reply: &'static str, times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut room = [0; 4096];
                for _ in 0..times {
                    if !client.read(&mut room).is_ok_and(|n| n > 0)
                        || client.write_all(reply.as_bytes()).is_err()
                    {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_server_that_lies_or_goes_away_ends_the_run_with_a_sentence() {
    if foreign() {
        return;
    }
    let lies = "$12\r\ndb0:keys=0,x\r\n";
    for (reply, times) in [
        ("", 1),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", 9),
        ("+OK\r\n", usize::MAX),
        (":0\r\n", usize::MAX),
        (":9223372036854775807\r\n", usize::MAX),
        (lies, usize::MAX),
        ("+OK\r\n+OK\r\n", usize::MAX),
        ("*-1\r\n", usize::MAX),
        ("*2\r\n$1\r\n5\r\n*1\r\n$6\r\nuser:1\r\n", 40),
        (":0\r\n", 9),
        (":0\r\n", 12),
    ] {
        let output = bench(&["copy", "blacklist", "--timeout", "1", "--against", &hostile(reply, times)]);
        assert_eq!(output.status.code(), Some(1), "{reply:?}: {}", said(&output));
        assert!(
            !said(&output).contains("panicked") && !output.stderr.is_empty(),
            "{reply:?}: {}",
            said(&output)
        );
    }
    let output = bench(&["copy", "--against", &format!("127.0.0.1:{}", free_port())]);
    assert!(said(&output).contains("cannot connect"), "{}", said(&output));
}

#[test]
fn a_signal_ends_the_run_and_removes_the_keys() {
    if foreign() {
        return;
    }
    // While a bystander is watched, and while keys are written.
    for words in
        [["copy", "--keys", "2000", "--seconds", "600"], ["memory", "--keys", "300000", "--seconds", "1"]]
    {
        let server = Server::start();
        let mut client = server.client();
        let mut run = Command::new(binary())
            .arg("bench")
            .args(words)
            .args(["--against", &place(&server)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let deadline = Instant::now() + PATIENCE;
        // More than the probe.
        while matches!(client.call("DBSIZE").as_str(), ":0" | ":1") {
            assert!(Instant::now() < deadline && run.try_wait().expect("its status").is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = run.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
        let output = run.wait_with_output().expect("its end");
        assert_eq!(output.status.code(), Some(130), "{}", said(&output));
        assert!(said(&output).contains("all keys of the benchmark are removed"), "{}", said(&output));
        assert_eq!(keys(&server), ":0");
    }
}

#[test]
fn a_real_redis_is_measured_like_any_other() {
    if foreign() {
        return;
    }
    let Some(redis) = Server::redis(&[]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let words = ["all", "--beside", &place(&redis), "--json", json.to_str().expect("UTF-8"), "--rounds", "1"];
    let output = bench(&words);
    assert!(output.status.success(), "{}", said(&output));
    let found = read(&json);
    assert_eq!(
        (&found["targets"][0]["name"], &found["targets"][1]["name"]),
        (&"Evenkeel".into(), &"Redis".into())
    );
    let names: Vec<&str> = found["stories"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|story| story["story"].as_str())
        .collect();
    assert!(!names.contains(&"save"), "a snapshot would replace the server's file: {names:?}");
    assert_eq!(keys(&redis), ":0");
}

#[test]
fn mistakes_in_the_command_line_say_what_is_right() {
    if foreign() {
        return;
    }
    for (words, right) in [
        (&["blaklist"][..], "'blacklist'"),
        (&["--seconds", "0"], "above 0"),
        (&["--compare", "x"], "'--beside'"),
        (&["--against", "h:x"], "is not a port"),
        (&["--user", "ann", "--password", "x"], "--against"),
        (&["--help"], "--expect"),
    ] {
        let output = run(&[&["bench"][..], words].concat());
        assert!(said(&output).contains(right), "{words:?}: {}", said(&output));
    }
}
