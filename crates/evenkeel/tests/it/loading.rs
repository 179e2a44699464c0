//! `evenkeel load` and `evenkeel copy`, as an operator runs them.

use crate::support::{Client, PATIENCE, Server, foreign, run, said};
use std::path::{Path, PathBuf};

/// A folder with an input.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(name: &str, text: &str) -> (Folder, PathBuf) {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        let path = folder.0.path().join(name);
        std::fs::write(&path, text).expect("written");
        (folder, path)
    }
}

/// Runs `evenkeel load FILE --to the server WORDS`; returns whether it ended well, and all its output.
fn load(server: &Server, file: &Path, words: &str) -> (bool, String) {
    let to = format!("127.0.0.1:{}", server.addr.port());
    let file = file.display().to_string();
    let args: Vec<&str> = ["load", &file, "--to", &to].into_iter().chain(words.split(' ')).collect();
    let output = run(&args);
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

fn served() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

#[test]
fn rows_become_hashes_strings_and_json() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let (_folder, people) =
        Folder::new("people.csv", "id,name,age\n1,Ann,30\n2,\"Bob, Jr\",\n3,\"C\n D\",7\n");
    let (well, said) = load(&server, &people, "--key user:{id}");
    assert!(well && said.contains("3 rows as 3 values"), "{said}");
    client.expect("HGET user:1 name", "\"Ann\"");
    client.expect("HGET user:2 name", "\"Bob, Jr\"");
    client.expect("HLEN user:3", ":3");
    let (well, said) =
        load(&server, &people, "--key name:{id} --as string --value name --ttl 1000 --via commands");
    assert!(well, "{said}");
    client.expect("GET name:2", "\"Bob, Jr\"");
    let ttl: u64 = client.call("TTL name:1")[1..].parse().expect("seconds");
    assert!((900..=1000).contains(&ttl), "{ttl}");
    let (well, said) = load(&server, &people, "--key json:{id} --as json");
    assert!(well, "{said}");
    client.expect("GET json:1", "\"{\\\"id\\\":\\\"1\\\",\\\"name\\\":\\\"Ann\\\",\\\"age\\\":\\\"30\\\"}\"");
}

#[test]
fn servers_are_named_as_redis_cli_names_them() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--requirepass", "s3cret"]);
    let port = server.addr.port().to_string();
    let (_folder, path) = Folder::new("lines.txt", "a\n");
    let file = path.display().to_string();
    let uri = format!("redis://:s3cret@127.0.0.1:{port}/3");
    for (db, words) in
        [(2, vec!["-h", "127.0.0.1", "-p", &port, "-a", "s3cret", "-n", "2"]), (3, vec!["-u", &uri])]
    {
        let row = ["load", &file, "--key", "{line}", "--as", "json"];
        let output = run(&row.iter().chain(&words).copied().collect::<Vec<_>>());
        assert!(output.status.success(), "{}", said(&output));
        let mut client = server.client();
        client.expect("AUTH s3cret", "+OK");
        client.expect(&format!("SELECT {db}"), "+OK");
        client.expect("EXISTS a", ":1");
    }
    let to = ["-p", &port, "-a", "s3cret", "-n", "4"];
    let output = run(&["copy", "--from", &uri].iter().chain(&to).copied().collect::<Vec<_>>());
    assert!(output.status.success() && said(&output).contains("1 keys as 1 values"), "{}", said(&output));
    let output = run(&["copy", "-h", "127.0.0.1", "--to", "127.0.0.1:1", "--from", &uri]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(!said(&output).contains("s3cret"), "{}", said(&output));
}

#[test]
fn the_rows_of_a_key_become_one_collection_each_way() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let rows: String =
        (0..3000).map(|i| format!("{{\"g\":\"{}\",\"m\":{i},\"s\":{}.5}}\n", i % 2, 3000 - i)).collect();
    let (_folder, path) = Folder::new("rows.ndjson", &rows);
    for via in ["restore", "commands"] {
        let options = format!("--existing replace --via {via}");
        for (kind, more) in [("list", ""), ("set", ""), ("integer-set", ""), ("zset", " --score s")] {
            let (well, said) =
                load(&server, &path, &format!("--key {kind}:{{g}} --as {kind} --value m{more} {options}"));
            assert!(well && said.contains("3,000 rows as 2 values"), "{said}");
        }
        client.expect("LRANGE list:1 0 2", "[\"1\", \"3\", \"5\"]");
        client.expect("LLEN list:0", ":1500");
        client.expect("SCARD set:1", ":1500");
        client.expect("SISMEMBER integer-set:0 2998", ":1");
        client.expect("ZRANGE zset:0 0 0 WITHSCORES", "[\"2998\", \"2.5\"]");
    }
}

#[test]
fn mistakes_are_told_with_their_line_and_stop_or_are_skipped() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let (_folder, path) = Folder::new("ids.csv", "id,v\n1,10\n2,x\n3\n4,40\n");
    let path_text = path.display().to_string();
    let (well, said) = load(&server, &path, "--key s --as integer-set --value v");
    assert!(!well && said.contains(&format!("{path_text}:3: 'x' is not a 64-bit integer")), "{said}");
    let (well, said) = load(&server, &path, "--key s --as integer-set --value v --on-error skip --dry-run");
    assert!(well && said.contains("nothing was sent"), "{said}");
    client.expect("EXISTS s", ":0");
    let (well, said) = load(&server, &path, "--key s --as integer-set --value v --on-error skip");
    assert!(well && said.contains(&format!("{path_text}:4: 1 columns where 2 were announced")), "{said}");
    assert!(said.contains("2 were wrong or refused"), "{said}");
    client.expect("SMEMBERS s", "[\"10\", \"40\"]");

    let (_other, path) = Folder::new("lines.txt", "a\nb\n");
    client.expect("SET k:b taken", "+OK");
    let (well, said) = load(&server, &path, "--key k:{line} --as string --value line");
    assert!(!well && said.contains("lines.txt:2: BUSYKEY"), "{said}");
    client.expect("DEL k:a", ":1");
    let (well, said) = load(&server, &path, "--key k:{line} --as string --value line --existing skip");
    assert!(well && said.contains("1 were there already"), "{said}");
    client.expect("GET k:b", "\"taken\"");
    let (well, said) = load(&server, Path::new("/nowhere.csv"), "--key k");
    assert!(!well && said.contains("cannot open /nowhere.csv"), "{said}");
}

#[test]
fn small_values_are_gathered_and_told_apart() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let rows: String = (0..1_000).map(|i| format!("{i},name{i}\n")).collect();
    let (_folder, path) = Folder::new("rows.csv", &format!("id,name\n{rows}"));
    let (well, said) = load(&server, &path, "--key u:{id}");
    assert!(well && said.contains("1,000 rows as 1,000 values"), "{said}");
    let stats = client.call("INFO commandstats");
    assert!(stats.contains("cmdstat_mrestore") && !stats.contains("cmdstat_restore"), "{stats}");
    client.expect("HGETALL u:999", "[\"id\", \"999\", \"name\", \"name999\"]");
    client.expect("DEL u:7 u:500", ":2");
    client.expect("HSET u:8 id mine", ":0");
    let (well, said) = load(&server, &path, "--key u:{id} --existing skip");
    assert!(well && said.contains("2 rows as 2 values") && said.contains("998 were there already"), "{said}");
    client.expect("HGET u:500 name", "\"name500\"");
    client.expect("HGET u:8 id", "\"mine\"");
    client.expect("DEL u:7 u:500", ":2");
    let (well, said) = load(&server, &path, "--key u:{id} --on-error skip");
    assert!(well && said.contains("998 were wrong or refused"), "{said}");
    // The order of the reported ones depends on the connections; the two that are gone are not among them.
    assert!(
        said.contains(": BUSYKEY") && !said.contains("rows.csv:9:") && !said.contains("rows.csv:502:"),
        "{said}"
    );
    client.expect("HGET u:7 name", "\"name7\"");
    let (well, said) = load(&server, &path, "--key u:{id} --existing replace --ttl 1000");
    assert!(well && said.contains("1,000 rows as 1,000 values"), "{said}");
    client.expect("HGET u:8 id", "\"8\"");
    assert!(client.call("TTL u:999").len() > 3);
}

#[test]
fn loading_goes_on_where_it_came_to() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let (folder, path) = Folder::new("rows.csv", "id,v\n1,a\n2,b\n3,c\n");
    let resume = folder.0.path().join("state");
    let options = format!("--key k:{{id}} --as string --resume {}", resume.display());
    // The second row is refused.
    client.expect("SET k:2 taken", "+OK");
    let (well, said) = load(&server, &path, &options);
    assert!(!well && said.contains("rows.csv:3: BUSYKEY"), "{said}");
    client.expect("DEL k:1 k:2 k:3", &format!(":{}", 2 + usize::from(client_has(&server, "k:3"))));
    let (well, said) = load(&server, &path, &options);
    assert!(well, "{said}");
    // Neither the refused row nor those behind it are left out.
    client.expect("MGET k:2 k:3", "[\"b\", \"c\"]");
    std::fs::write(&path, "id,v\n1,a\n2,b\n3,c\n4,d\n").expect("written");
    let (well, said) = load(&server, &path, &options);
    assert!(well && said.contains("1 rows as 1 values"), "only what is new: {said}");
    client.expect("GET k:4", "\"d\"");
}

/// An interrupted run had sent rows behind its saved place: their existing keys are no error.
#[test]
fn rows_that_an_interrupted_run_had_sent_are_no_mistakes() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let (folder, path) = Folder::new("rows.csv", "id,v\n1,a\n2,b\n3,c\n");
    let resume = folder.0.path().join("state");
    let state = format!("{{\"input\":\"{}\",\"line\":2,\"offset\":9,\"reach\":3}}", path.display());
    std::fs::write(&resume, state).expect("written");
    client.expect("MSET k:1 a k:2 b", "+OK");
    let options = format!("--key k:{{id}} --as string --resume {}", resume.display());
    let (well, said) = load(&server, &path, &options);
    assert!(well && said.contains("1 rows as 1 values") && said.contains("1 were there already"), "{said}");
    client.expect("GET k:3", "\"c\"");
    // Where that cannot be told, the command is refused beforehand.
    let (well, said) =
        load(&server, &path, &format!("--key all --value v --as list --resume {}", resume.display()));
    assert!(!well && said.contains("--existing replace"), "{said}");
}

/// A refused row has a foreign key, and still has it when loading goes on; so has a row that came later.
#[test]
fn rows_with_keys_of_others_are_told_from_rows_that_an_interrupted_run_had_sent() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let (folder, path) = Folder::new("rows.csv", "id,v\n1,a\n2,b\n3,c\n");
    let resume = folder.0.path().join("state");
    let options = format!("--key k:{{id}} --as string --connections 1 --resume {}", resume.display());
    client.expect("MSET k:1 taken k:3 taken", "+OK");
    let (well, said) = load(&server, &path, &options);
    assert!(!well && said.contains("rows.csv:2: BUSYKEY"), "{said}");
    client.expect("GET k:2", "\"b\"");
    client.expect("DEL k:1", ":1");
    let (well, said) = load(&server, &path, &options);
    assert!(!well && said.contains("rows.csv:4: BUSYKEY") && said.contains("1 were there already"), "{said}");
    client.expect("DEL k:3", ":1");
    let (well, said) = load(&server, &path, &options);
    assert!(well && said.contains("1 rows as 1 values"), "{said}");
    std::fs::write(&path, "id,v\n1,a\n2,b\n3,c\n4,d\n").expect("written");
    client.expect("SET k:4 taken", "+OK");
    let (well, said) = load(&server, &path, &options);
    assert!(!well && said.contains("rows.csv:5: BUSYKEY"), "{said}");
    client.expect("MGET k:1 k:2 k:3 k:4", r#"["a", "b", "c", "taken"]"#);
}

/// When the file of the progress cannot be written, that is reported, and nothing is sent before.
#[test]
fn a_disk_that_is_full_is_told() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let (folder, path) = Folder::new("rows.csv", "id,v\n1,a\n");
    let (well, said) =
        load(&server, &path, &format!("--key k:{{id}} --resume {}/no/state", folder.0.path().display()));
    assert!(!well && said.contains("cannot write") && said.contains("no/state: No such file"), "{said}");
    // Files may have no bytes at all, and the signal for that is ignored.
    let words = format!(
        "trap '' XFSZ; ulimit -f 0; exec {} load {} --to 127.0.0.1:{} --key k:{{id}} --resume {}/state",
        env!("CARGO_BIN_EXE_evenkeel"),
        path.display(),
        server.addr.port(),
        folder.0.path().display()
    );
    let output = std::process::Command::new("sh").args(["-c", &words]).output().expect("a shell");
    let said = crate::support::said(&output);
    assert!(!output.status.success() && said.contains("state: File too large"), "{said}");
    client.expect("DBSIZE", ":0");
}

/// A collection too large to be sent at once: nothing of it gets into a value that existed before.
#[test]
fn keys_that_are_to_stay_as_they_are_get_nothing_added() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    let rows: String = (0..30_000).map(|i| format!("{},{:0100}\n", i % 3, i)).collect();
    let (_folder, path) = Folder::new("rows.csv", &format!("k,v\n{rows}"));
    for (kind, make, count) in
        [("list", "RPUSH", "LLEN"), ("set", "SADD", "SCARD"), ("zset", "ZADD", "ZCARD")]
    {
        let score = if kind == "zset" { "5 " } else { "" };
        client.expect(&format!("{make} {kind}:1 {score}mine"), ":1");
        let score = if kind == "zset" { " --score k" } else { "" };
        let options = format!("--key {kind}:{{k}} --as {kind} --value v{score} --memory 1");
        for (existing, ends_well) in [("skip", true), ("fail --on-error skip", true), ("fail", false)] {
            let (well, said) = load(&server, &path, &format!("{options} --existing {existing}"));
            assert_eq!(well, ends_well, "{kind} {existing}: {said}");
            client.expect(&format!("{count} {kind}:1"), ":1");
            if ends_well {
                client.expect(&format!("{count} {kind}:0"), ":10000");
                client.expect(&format!("{count} {kind}:2"), ":10000");
                client.expect(&format!("DEL {kind}:0 {kind}:2"), ":2");
            }
        }
        client.call(&format!("DEL {kind}:0 {kind}:2"));
        let (well, said) = load(&server, &path, &format!("{options} --existing replace"));
        assert!(well && said.contains("30,000 rows as 3 values"), "{said}");
        client.expect(&format!("{count} {kind}:1"), ":10000");
    }
}

/// A real Redis takes the loaded rows, as payloads and as commands, and gives them back to a copy; both with
/// a password.
#[test]
fn a_real_redis_is_loaded_and_copied_from() {
    if foreign() {
        return;
    }
    let Some(redis) = Server::redis(&["--requirepass", "secret"]) else { return };
    let (ours, mut target) = served();
    let mut client = redis.client();
    client.expect("AUTH secret", "+OK");
    let rows: String = (0..2_000).map(|i| format!("{},{i},{}.5\n", i % 2, 2_000 - i)).collect();
    let (_folder, path) = Folder::new("rows.csv", &format!("g,m,s\n{rows}"));
    let (well, said) = load(&redis, &path, "--key x:{m}");
    assert!(!well && said.contains("NOAUTH"), "{said}");
    for via in ["restore", "commands"] {
        for (kind, more) in [
            ("string", "--key string:{m} --value s"),
            ("json", "--key json:{m}"),
            ("hash", "--key hash:{m}"),
            ("list", "--key list:{g} --value m --memory 1"),
            ("set", "--key set:{g} --value s"),
            ("integer-set", "--key ints:{g} --value m"),
            ("zset", "--key zset:{g} --value m --score s"),
        ] {
            let words =
                format!("{more} --as {kind} --via {via} --existing replace --password secret --ttl 5000");
            let (well, said) = load(&redis, &path, &words);
            assert!(well && said.contains("2,000 rows"), "{kind} {via}: {said}");
        }
        client.expect("DBSIZE", &format!(":{}", 3 * 2_000 + 4 * 2));
        client.expect("GET string:7", "\"1993.5\"");
        client.expect("HGET hash:7 s", "\"1993.5\"");
        client.expect("LRANGE list:1 0 1", "[\"1\", \"3\"]");
        client.expect("LLEN list:0", ":1000");
        client.expect("SCARD set:1", ":1000");
        client.expect("OBJECT ENCODING ints:1", "\"hashtable\"");
        client.expect("ZRANGE zset:0 0 0 WITHSCORES", "[\"1998\", \"2.5\"]");
    }
    let servers = [&redis, &ours].map(|server| format!("127.0.0.1:{}", server.addr.port()));
    let output = run(&["copy", "--from", &servers[0], "--from-password", "secret", "--to", &servers[1]]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    target.expect("DBSIZE", ":6008");
    target.expect("ZRANGE zset:0 0 0 WITHSCORES", "[\"1998\", \"2.5\"]");
    target.expect("LRANGE list:1 -1 -1", "[\"1999\"]");
    assert!(target.call("TTL hash:1999").len() > 4);
    // And back, over the existing keys.
    let words = ["copy", "--from", &servers[1], "--to", &servers[0], "--password", "secret", "--existing"];
    let output = run(&[&words[..], &["replace"]].concat());
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("6,008 keys as 6,008 values"), "{said}");
    client.expect("DBSIZE", ":6008");
}

/// Keys that vanish while they are copied, and keys that the source does not give.
#[test]
fn a_copy_leaves_out_what_is_gone_and_goes_on_after_what_is_refused() {
    let ((from, mut source), (to, mut target)) = (served(), served());
    if foreign() {
        return;
    }
    // Expiring within the copy or not at all: none of them may become permanent.
    for i in 0..300 {
        source.expect(&format!("SET brief:{i} x PX {}", 1 + i), "+OK");
    }
    source.expect("SET stays x", "+OK");
    // Its payload would be too large to be made.
    source.expect("R64.SETFULL full", "+OK");
    let servers = [&from, &to].map(|server| format!("127.0.0.1:{}", server.addr.port()));
    let output = run(&["copy", "--from", &servers[0], "--to", &servers[1], "--on-error", "skip"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("full: the source refused DUMP"), "{said}");
    target.expect("TTL stays", ":-1");
    let deadline = std::time::Instant::now() + PATIENCE;
    while target.call("KEYS *") != "[\"stays\"]" {
        assert!(std::time::Instant::now() < deadline, "{}", target.call("KEYS *"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn client_has(server: &Server, key: &str) -> bool {
    server.client().call(&format!("EXISTS {key}")) == ":1"
}

#[test]
fn keys_are_copied_to_another_server_with_their_times() {
    let ((from, mut source), (to, mut target)) = (served(), served());
    if foreign() {
        return;
    }
    source.expect("MSET user:1 a user:2 b other c", "+OK");
    source.expect("RPUSH user:list x y", ":2");
    source.expect("EXPIRE user:2 1000", ":1");
    let servers = [&from, &to].map(|server| format!("127.0.0.1:{}", server.addr.port()));
    let copy = |more: &[&str]| {
        let args =
            [&["copy", "--from", &servers[0], "--to", &servers[1], "--match", "user:*"], more].concat();
        let output = run(&args);
        let text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.success(), text)
    };
    assert_eq!(copy(&["--dry-run"]), (true, "3 keys would be copied; nothing was sent\n".to_owned()));
    let (well, said) = copy(&[]);
    assert!(well && said.contains("3 keys as 3 values"), "{said}");
    target.expect("DBSIZE", ":3");
    target.expect("LRANGE user:list 0 -1", "[\"x\", \"y\"]");
    let ttl: u64 = target.call("TTL user:2")[1..].parse().expect("seconds");
    assert!((900..=1000).contains(&ttl), "{ttl}");
    let (well, said) = copy(&[]);
    assert!(!well && said.contains("user:") && said.contains("BUSYKEY"), "{said}");
    let (well, said) = copy(&["--existing", "skip"]);
    assert!(well && said.contains("3 were there already"), "{said}");
    assert!(copy(&["--existing", "replace"]).0);
}

/// Redis and Valkey refuse each other's payloads, whatever they contain; a copy translates them.
#[test]
fn keys_are_copied_between_redis_and_valkey() {
    if foreign() {
        return;
    }
    let peers = ["redis8-server", "valkey-server"].map(|program| Server::peer(program, &[]));
    let [Some(redis), Some(valkey)] = peers else { return };
    let ours = Server::start();
    let mut client = redis.client();
    client.expect("SET string text", "+OK");
    client.expect("RPUSH list a 1", ":2");
    client.expect("SADD set a 1", ":2");
    client.expect("ZADD zset 1.5 a", ":1");
    client.expect("XADD stream 1-1 f v", "\"1-1\"");
    client.expect("HSET hash f v g 1", ":2");
    client.expect("HPEXPIREAT hash 1900000000000 FIELDS 1 g", "[:1]");
    let copy = |from: &Server, to: &Server| {
        let [from, to] = [from, to].map(|server| format!("127.0.0.1:{}", server.addr.port()));
        let output = run(&["copy", "--from", &from, "--to", &to]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let holds = |server: &Server, keys: &str| {
        let mut client = server.client();
        client.expect("DBSIZE", keys);
        client.expect("GET string", "\"text\"");
        client.expect("LRANGE list 0 -1", r#"["a", "1"]"#);
        client.expect("SISMEMBER set a", ":1");
        client.expect("ZSCORE zset a", "\"1.5\"");
        client.expect("HMGET hash f g", r#"["v", "1"]"#);
        client.expect("HPEXPIRETIME hash FIELDS 2 f g", "[:-1, :1900000000000]");
    };
    copy(&redis, &valkey);
    holds(&valkey, ":6");
    valkey.client().expect("XLEN stream", ":1");
    client.expect("FLUSHALL", "+OK");
    copy(&valkey, &redis);
    holds(&redis, ":6");
    client.expect("DEL stream", ":1");
    copy(&redis, &ours);
    client.expect("FLUSHALL", "+OK");
    copy(&ours, &redis);
    holds(&redis, ":5");
    valkey.client().expect("FLUSHALL", "+OK");
    copy(&ours, &valkey);
    holds(&valkey, ":5");
}

/// Text that does not fit is reported with its line, and nothing is lost in silence.
#[test]
fn text_that_cannot_be_right_is_told() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    for (name, text, words, told, keys) in [
        (
            "open.csv",
            "id,v\n1,a\n2,\"open\n3,c\n4,d\n",
            "--key {id}",
            "line 3: the quote that begins there",
            1,
        ),
        ("behind.csv", "id,v\n1,a\n2,\"a\"b\n3,c\n", "--key {id}", "behind.csv:3: other text behind", 1),
        ("behind.csv", "id,v\n1,a\n2,\"a\"b\n3,c\n", "--key {id} --on-error skip", "1 refused", 2),
        ("head.csv", "\"id\"x,v\n1,a\n", "--key {id}", "line 1: other text behind", 0),
        ("twice.csv", "id,v,id\n1,a,2\n", "--key {id}", "column 'id' twice", 0),
        (
            "name.csv",
            "id,name\n1,a\n",
            "--key {ID}",
            "no column 'ID'; there are id, name; did you mean 'id'?",
            0,
        ),
        ("name.csv", "id,name\n1,a\n", "--key {id} --as string --value Name", "did you mean 'name'?", 0),
        ("name.ndjson", "{\"id\":1}\n", "--key {ID}", "name.ndjson:1: no column 'ID'; there are id", 0),
        ("empty.csv", "", "--key {id}", "no column 'id': there are no columns", 0),
        ("more.csv", "id,v\n1,a,b\n", "--key {id}", "more.csv:2: 3 columns where 2", 0),
        ("list.ndjson", "{\"id\":1,\"v\":2}\n[1]\n", "--key {id}", "list.ndjson:2: no JSON object", 1),
    ] {
        client.expect("FLUSHALL", "+OK");
        let (_folder, path) = Folder::new(name, text);
        let (well, said) = load(&server, &path, words);
        assert!(!well || words.contains("skip"), "{name} {words}: {said}");
        assert!(said.contains(told) || words.contains("skip"), "{name} {words}: {said}");
        client.expect("DBSIZE", &format!(":{keys}"));
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let (server, mut client) = served();
    if foreign() {
        return;
    }
    for (name, text, words) in [
        ("a.csv", "\u{feff}id,v\n1,a\n", "--key {id}"),
        ("b.csv", "\u{feff}\"id\",v\r\n1,\"a\"\r\n", "--key {id}"),
        ("c.ndjson", "\u{feff}{\"id\":1,\"v\":\"a\"}\n", "--key {id}"),
        ("d.txt", "\u{feff}1", "--key {line} --as string --value line"),
    ] {
        client.expect("FLUSHALL", "+OK");
        let (_folder, path) = Folder::new(name, text);
        let (well, said) = load(&server, &path, words);
        assert!(well && said.contains("1 rows as 1 values"), "{name}: {said}");
        client.expect("EXISTS 1", ":1");
    }
    for (bytes, told) in [(&b"\xff\xfei\0d\0"[..], "UTF-16"), (b"\x1f\x8b\x08\0", "compressed")] {
        let (_folder, path) = Folder::new("e.csv", "");
        std::fs::write(&path, bytes).expect("written");
        let (well, said) = load(&server, &path, "--key {id}");
        assert!(!well && said.contains(told), "{said}");
    }
}
