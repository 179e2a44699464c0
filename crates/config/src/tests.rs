//! Tests of the configuration from outside: files, command lines, and CONFIG's sub-commands.

use super::*;
use resp::{Args, OwnedArgs, Reply};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

fn load_with(dir: &Path, file: &str, options: &[&str]) -> Result<Config, LoadError> {
    let path = dir.join("redis.conf");
    fs::write(&path, file).unwrap();
    let args = std::iter::once(path.into_os_string()).chain(options.iter().map(OsString::from));
    let Invocation::Serve(sources) = parse(args).unwrap() else { panic!("not a start") };
    Config::load(&sources, &mut std::io::empty())
}

fn load(file: &str) -> Result<Config, LoadError> {
    load_with(tempfile::tempdir().unwrap().path(), file, &[])
}

fn value(config: &Config, name: &str) -> String {
    String::from_utf8(config.value(name).unwrap()).unwrap()
}

fn assign(config: &Config, words: &[&str]) -> Result<(), String> {
    let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
    config.set(&words, true)
}

fn found(config: &Config, patterns: &[&str]) -> Vec<(String, String)> {
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    config.get(patterns.iter().map(|p| p.as_bytes())).into_iter().map(|(n, v)| (text(n), text(v))).collect()
}

#[test]
fn a_distribution_file_is_read_line_by_line() {
    let config = load(concat!(
        "# comment\n\nbind 127.0.0.1 -::1\r\nPORT 7000\nsave \"\"\n   maxclients   500  \n",
        "client-output-buffer-limit replica 256mb 64mb 60\nclient-output-buffer-limit pubsub 1mb 1mb 5\n",
        "slave-read-only yes\nhz 5000\nnotify-keyspace-events \"KEA\"\nrename-command FLUSHALL \"\"\n",
        "requirepass \"a b\\x21\"\nuser default on nopass sanitize-payload ~* &* +@all\nlua-time-limit 7\nport 7001",
    ))
    .unwrap();
    assert_eq!(value(&config, "port"), "7001");
    assert_eq!(config.live.port.get(), 7001);
    assert_eq!(config.live.maxclients.get(), 500);
    assert_eq!(config.live.output_limits[2].soft_s.get(), 5);
    assert_eq!(config.live.output_limits[1].hard_bytes.get(), 256 << 20);
    assert_eq!(config.live.hz.get(), 500);
    assert_eq!(config.live.busy_reply_ms.get(), 7);
    assert_eq!(config.live.requirepass.string(), "a b!");
    assert_eq!(value(&config, "notify-keyspace-events"), "AKE");
    assert_eq!(config.renames(), [(b"FLUSHALL".to_vec(), b"".to_vec())]);
    assert_eq!(config.bind(), [("127.0.0.1".to_string(), false), ("::1".to_string(), true)]);
}

#[test]
fn every_mistake_names_its_file_and_line() {
    let error = load("port 1\nfoo bar\nport \"1\nport 1 2\nmaxmemry 5\nport abc\n").err().unwrap();
    let found: Vec<(usize, &str)> = error
        .mistakes
        .iter()
        .map(|m| (if let Place::File { line, .. } = m.place { line } else { 0 }, m.reason.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (2, "Bad directive or wrong number of arguments: there is no directive 'foo'"),
            (3, "Unbalanced quotes in configuration line"),
            (4, "wrong number of arguments"),
            (
                5,
                "Bad directive or wrong number of arguments: there is no directive 'maxmemry'; did you mean 'maxmemory'?"
            ),
            (6, "argument couldn't be parsed into an integer"),
        ]
    );
    let text = error.to_string();
    assert!(text.starts_with("*** FATAL CONFIG FILE ERROR (Evenkeel "), "{text}");
    assert!(text.contains("redis.conf, at line 2\n>>> 'foo bar'\nBad directive"), "{text}");
}

#[test]
fn what_does_not_exist_yet_is_refused() {
    for (line, words) in [("loadmodule /x.so", "modules are not supported"), ("daemonize yes", "background")]
    {
        let error = load(line).err().unwrap_or_else(|| panic!("{line} passed"));
        assert!(error.mistakes[0].reason.contains(words), "{line}: {error}");
    }
    load(
        "save \"\"\nappendonly no\nreplicaof no one\nmaxmemory 1gb\nmaxmemory-policy allkeys-lru\ntls-port 6380\n",
    )
    .unwrap();
}

/// Debian's redis.conf says `daemonize yes`, and its service starts the server with `--daemonize no`.
#[test]
fn what_does_not_exist_yet_may_be_taken_back_by_a_later_line() {
    let text = "daemonize yes\nsave 3600 1 300 100\nappendonly yes\nport 7000\ndaemonize no\nsave \"\"\nappendonly no\n";
    assert_eq!(load(text).unwrap().value("daemonize").as_deref(), Some(&b"no"[..]));
    for (text, left) in [
        ("daemonize yes\nloadmodule /x.so\ndaemonize no\n", "loadmodule /x.so"),
        ("daemonize no\ndaemonize yes\n", "daemonize yes"),
        ("daemonize no\ndaemonize perhaps\ndaemonize no\n", "daemonize perhaps"),
        ("port none\nport 7000\n", "port none"),
    ] {
        let error = load(text).err().unwrap_or_else(|| panic!("{text} passed"));
        let texts: Vec<_> = error.mistakes.iter().map(|mistake| mistake.text.as_str()).collect();
        assert_eq!(texts, [left]);
    }
}

#[test]
fn secrets_stay_out_of_messages() {
    let text = load("requirepass one two\nuser default >hush -@all hush\n").err().unwrap().to_string();
    assert!(!text.contains("two") && !text.contains("hush"), "{text}");
    for line in [
        "source a postgres://u:hush@h x",
        "sorce a a:{id} postgres://u:hush@h/d",
        "sorce a a:{id} \"postgres://u:hush@h/d",
        "postgres://u:hush@h/d",
        "requirepass \"hush",
        "dir \"postgres://u:hush",
    ] {
        let text = load(line).err().unwrap_or_else(|| panic!("{line} passed")).to_string();
        assert!(!text.contains("hush"), "{line}: {text}");
    }
}

#[test]
fn user_lines_are_users() {
    let config =
        load("user a on >p (~a +get) ~x\nuser default off\nacl-pubsub-default allchannels\n").unwrap();
    let lines: Vec<_> = config.users().iter().map(|user| String::from_utf8(user.line()).unwrap()).collect();
    assert!(lines[0].starts_with("user a on sanitize-payload #") && lines[0].ends_with("(~a &* -@all +get)"));
    assert_eq!(lines[1], "user default off sanitize-payload &* -@all");
    for (text, words) in [
        ("user", "wrong number"),
        ("user a\nuser a on", "Duplicate user"),
        ("user a +nope", "rule 1: Unknown command"),
        ("user a on ~a x", "rule 3: Syntax error"),
        ("user a (~x", "Unmatched parenthesis"),
        ("user \"a b\" on", "no spaces"),
    ] {
        let error = load(text).err().unwrap_or_else(|| panic!("{text} passed"));
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}

#[test]
fn rewrite_writes_the_users_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let included = dir.path().join("more.conf");
    fs::write(&included, "user more on\n").unwrap();
    let file = format!("user gone on\n# mine\nuser a on\ninclude {}\n", included.display());
    let config = load_with(dir.path(), &file, &[]).unwrap();
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let users = vec![
        words("a on sanitize-payload ~\"x resetchannels -@all +get"),
        words("default on nopass sanitize-payload ~* &* +@all"),
        words("more off"),
        words("new on (~a -@all)"),
    ];
    let rewritten = |users| {
        config.rewrite(&[], users).unwrap();
        fs::read_to_string(dir.path().join("redis.conf")).unwrap()
    };
    let expect = format!(
        "# mine\nuser a on sanitize-payload \"~\\\"x\" resetchannels -@all +get\ninclude {}\n\n\
         # Generated by CONFIG REWRITE\nuser new on (~a -@all)\n",
        included.display()
    );
    assert_eq!(rewritten(Some(users.clone())), expect);
    assert_eq!(rewritten(Some(users)), expect, "a second time nothing changes");
    let again = load_with(dir.path(), &expect, &[]).unwrap();
    assert_eq!(again.users().len(), 3);
    assert!(!rewritten(None).contains("\nuser"), "users that are kept elsewhere");
}

#[test]
fn the_command_line_comes_after_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        load_with(dir.path(), "port 1\nbind 0.0.0.0\n", &["--port", "2", "--bind", "127.0.0.1", "::1"])
            .unwrap();
    assert_eq!(value(&config, "port"), "2");
    assert_eq!(value(&config, "bind"), "127.0.0.1 ::1");
    let config = load_with(dir.path(), "", &["--bind", "127.0.0.1 ::1", "--save", ""]).unwrap();
    assert_eq!(config.bind().len(), 2);
    let error = load_with(dir.path(), "", &["--prot", "3"]).err().unwrap();
    assert_eq!(error.mistakes[0].place, Place::CommandLine);
    assert_eq!(error.mistakes[0].text, "--prot 3");
}

#[test]
fn standard_input_comes_between_file_and_options() {
    let args = ["-", "--port", "2"].map(OsString::from);
    let Ok(Invocation::Serve(sources)) = parse(args) else { panic!() };
    let config = Config::load(&sources, &mut "port 1\ndatabases 4\n".as_bytes()).unwrap();
    assert_eq!((value(&config, "port").as_str(), value(&config, "databases").as_str()), ("2", "4"));
    let error = Config::load(&sources, &mut "bad\n".as_bytes()).err().unwrap();
    assert_eq!(error.mistakes[0].place, Place::StandardInput { line: 1 });
}

#[test]
fn files_include_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("conf.d")).unwrap();
    for (name, text) in [("a.conf", "maxclients 7\nport 1"), ("b.conf", "port 2"), ("c.txt", "port 3")] {
        fs::write(dir.path().join("conf.d").join(name), text).unwrap();
    }
    let at = dir.path().display();
    let config =
        load_with(dir.path(), &format!("include {at}/conf.d/*.conf\ninclude {at}/none*.conf\n"), &[])
            .unwrap();
    assert_eq!((config.live.maxclients.get(), config.live.port.get()), (7, 2));
    let error = load_with(dir.path(), &format!("\ninclude {at}/missing.conf"), &[]).err().unwrap();
    assert!(error.to_string().contains("at line 2"), "{error}");
    assert!(error.to_string().contains("missing.conf': No such file"), "{error}");
    let error = load_with(dir.path(), &format!("include {at}/redis.conf"), &[]).err().unwrap();
    assert!(error.mistakes[0].reason.contains("include each other"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let sources = Sources { file: Some("/nonexistent/x.conf".into()), ..Sources::default() };
    let error = Config::load(&sources, &mut std::io::empty()).err().unwrap();
    assert_eq!(
        error.mistakes[0].reason,
        "can't open config file '/nonexistent/x.conf': No such file or directory"
    );
}

#[test]
fn config_get_takes_names_and_patterns() {
    let config = Config::default();
    assert_eq!(found(&config, &["PORT"]), [("PORT".to_string(), "6379".to_string())]);
    let pairs = found(&config, &["m*ory", "maxmemory", "slaveof", "hash-max-zip*"]);
    let names: Vec<&str> = pairs.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["maxmemory", "slaveof", "hash-max-ziplist-entries", "hash-max-ziplist-value"]);
    assert!(found(&config, &["nothing", "no*thing"]).is_empty());
    assert!(found(&config, &["*"]).len() > 200);
    assert_eq!(value(&config, "dir"), std::env::current_dir().unwrap().to_str().unwrap());
}

#[test]
fn config_set_changes_all_or_nothing() {
    let config = Config::default();
    assign(&config, &["maxclients", "5", "TIMEOUT", "9"]).unwrap();
    assert_eq!((config.live.maxclients.get(), config.live.timeout_s.get()), (5, 9));
    let error = assign(&config, &["maxclients", "6", "timeout", "x"]).unwrap_err();
    assert_eq!(
        error,
        "ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed into an integer"
    );
    assert_eq!(config.live.maxclients.get(), 5);
    assert_eq!(value(&config, "maxclients"), "5");
}

#[test]
fn config_set_refuses_in_the_usual_words() {
    let config = Config::default();
    let failed = |name: &str, reason: &str| {
        format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
    };
    for (words, error) in [
        (&["maxclients"][..], "ERR wrong number of arguments for 'config|set' command".to_string()),
        (&["a", "1", "b"], "ERR syntax error".into()),
        (&["foo", "bar"], "ERR Unknown option or number of arguments for CONFIG SET - 'foo'".into()),
        (
            &["rename-command", "a"],
            "ERR Unknown option or number of arguments for CONFIG SET - 'rename-command'".into(),
        ),
        (&["maxclients", "1", "maxclients", "2"], failed("maxclients", "duplicate parameter")),
        (
            &["lua-time-limit", "1", "busy-reply-threshold", "2"],
            failed("busy-reply-threshold", "duplicate parameter"),
        ),
        (&["daemonize", "no"], failed("daemonize", "can't set immutable config")),
        (&["dir", "/tmp"], failed("dir", "can't set protected config")),
        (&["maxclients", "0"], failed("maxclients", "argument must be between 1 and 4294967295 inclusive")),
        (
            &["proto-max-bulk-len", "1"],
            failed(
                "proto-max-bulk-len",
                "argument must be between 1048576 and 9223372036854775807 inclusive",
            ),
        ),
        (&["protected-mode", "perhaps"], failed("protected-mode", "argument must be 'yes' or 'no'")),
        (
            &["loglevel", "x"],
            failed(
                "loglevel",
                "argument(s) must be one of the following: debug, verbose, notice, warning, nothing",
            ),
        ),
        (&["save", "1 b"], failed("save", "Invalid save parameters")),
        (
            &["notify-keyspace-events", "Q"],
            failed("notify-keyspace-events", "Invalid event class character. Use 'Ag$lshzxeKEtmdn'."),
        ),
    ] {
        assert_eq!(assign(&config, words).unwrap_err(), error);
    }
    assign(&config, &["save", "", "appendonly", "no", "requirepass", "pässword"]).unwrap();
    assert_eq!(config.live.requirepass.string(), "pässword");
}

#[test]
fn protected_directives_open_by_configuration() {
    let config = load("enable-protected-configs local").unwrap();
    assert!(config.set(&[b"dbfilename", b"x"], false).is_err());
    assert!(config.set(&[b"dbfilename", b"x"], true).is_ok());
}

#[test]
fn observers_may_refuse_and_are_told() {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    };
    struct Watcher(Arc<AtomicI64>);
    impl Observer for Watcher {
        fn check(&self, directive: &Directive, value: &Parsed) -> Result<(), String> {
            match directive.name == "maxclients" && value.int() > 100 {
                true => Err("too many".into()),
                false => Ok(()),
            }
        }
        fn changed(&self, _: &Directive, live: &Live) {
            self.0.store(live.maxclients.get(), Ordering::Relaxed);
        }
    }
    let config = Config::default();
    let seen = Arc::new(AtomicI64::new(0));
    config.observe(Box::new(Watcher(seen.clone())));
    assert!(assign(&config, &["maxclients", "101"]).unwrap_err().ends_with("'maxclients') - too many"));
    assign(&config, &["maxclients", "99"]).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 99);
}

#[test]
fn idle_settings_are_reported_once_changed() {
    let config = load("rdbchecksum yes\nhz 20\nno-appendfsync-on-rewrite yes\nmaxclients 5").unwrap();
    let names: Vec<&str> = config.without_effect().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["hz", "no-appendfsync-on-rewrite"]);
}

/// As in Valkey 9: the first line replaces the defaults, further ones add to it, and `""` takes all back.
#[test]
fn lines_of_save_points_add_to_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, &[&str], &str); 7] = [
        ("save 60 1\nsave 30 2\n", &[], "60 1 30 2"),
        ("save 60 1\nsave \"\"\n", &[], ""),
        ("save \"\"\nsave 60 1\n", &[], "60 1"),
        ("save 60 1\nsave \"\"\nsave 7 8\n", &[], "7 8"),
        ("save 60 1\n", &["--save", ""], ""),
        ("save 60 1\n", &["--save", "5", "6", "--save", "7", "8"], "60 1 5 6 7 8"),
        ("port 1\n", &[], "3600 1 300 100 60 10000"),
    ];
    for (file, args, expected) in cases {
        let config = load_with(dir.path(), file, args).unwrap();
        assert_eq!(config.value("save").unwrap(), expected.as_bytes(), "{file} {args:?}");
    }
    // The rewritten file is read again.
    let config = load_with(dir.path(), "save 60 1\nport 1\n", &[]).unwrap();
    assign(&config, &["save", "10 5 20 6"]).unwrap();
    config.rewrite(&[], None).unwrap();
    let text = fs::read_to_string(dir.path().join("redis.conf")).unwrap();
    assert_eq!(load_with(dir.path(), &text, &[]).unwrap().value("save").unwrap(), b"10 5 20 6", "{text}");
}

#[test]
fn rewrite_keeps_what_its_author_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let file = concat!(
        "# my server\nport 43821\n\n# limits\nmaxclients 10\nclient-query-buffer-limit 1gb\nmaxclients 20\n",
        "client-output-buffer-limit pubsub 1mb 1mb 1\nrename-command FLUSHALL \"\"\nslaveof no one\ntcp-keepalive 77\nhz 10\n",
    );
    let config = load_with(dir.path(), file, &["--timeout", "5"]).unwrap();
    assign(&config, &["maxclients", "30", "requirepass", "a\"b c\n", "tcp-keepalive", "300"]).unwrap();
    assign(&config, &["client-output-buffer-limit", "pubsub 2mb 1mb 1 normal 1 1 1"]).unwrap();
    config.rewrite(&[], None).unwrap();
    let path = dir.path().join("redis.conf");
    let text = fs::read_to_string(&path).unwrap();
    let expect = concat!(
        "# my server\nport 43821\n\n# limits\nmaxclients 30\nclient-query-buffer-limit 1gb\n",
        "client-output-buffer-limit normal 1 1 1\nrename-command FLUSHALL \"\"\nslaveof no one\ntcp-keepalive 300\nhz 10\n\n",
        "# Generated by CONFIG REWRITE\ntimeout 5\nclient-output-buffer-limit pubsub 2mb 1mb 1\nrequirepass \"a\\\"b c\\n\"\n",
    );
    assert_eq!(text, expect);
    // The file read back gives the same values, and a second rewrite changes nothing.
    let again = load_with(dir.path(), &text, &[]).unwrap();
    assert_eq!(*again.values.read(), *config.values.read());
    again.rewrite(&[], None).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), expect);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A reader sees the old file or the new one: the file is replaced, not written.
#[test]
fn rewrite_replaces_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("redis.conf"), dir.path().join("link"));
    let (old, kept) = ("# mine\nmaxclients 10\n", dir.path().join("kept"));
    let config = load_with(dir.path(), old, &[]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(&path, &kept).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assign(&config, &["maxclients", "20"]).unwrap();
    config.rewrite(&[], None).unwrap();
    assert_eq!(fs::read_to_string(&kept).unwrap(), old);
    assert_eq!(fs::read_to_string(&link).unwrap(), "# mine\nmaxclients 20\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    // If the new file cannot be written, the old one stays.
    let beside = dir.path().join(format!(".redis.conf.{}.tmp", std::process::id()));
    fs::create_dir(&beside).unwrap();
    assign(&config, &["maxclients", "30"]).unwrap();
    assert!(config.rewrite(&[], None).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "# mine\nmaxclients 20\n");
}

/// A share of the memory stays one in the file, until another limit is set.
#[test]
fn rewrite_keeps_shares_of_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    for word in ["75%", "auto", "1%"] {
        let file = format!("# as much as there is\nmaxmemory {word}\nmaxclients 10\n");
        let config = load_with(dir.path(), &file, &[]).unwrap();
        let limit = value(&config, "maxmemory");
        assert!(limit.parse::<u64>().is_ok_and(|bytes| bytes > 0), "{limit}");
        assign(&config, &["maxclients", "20"]).unwrap();
        config.rewrite(&[], None).unwrap();
        let text = fs::read_to_string(dir.path().join("redis.conf")).unwrap();
        assert_eq!(text, file.replace("10", "20"));
        // The same share by CONFIG SET is the same number of bytes.
        assign(&config, &["maxmemory", "0"]).unwrap();
        assign(&config, &["maxmemory", word]).unwrap();
        assert_eq!(value(&config, "maxmemory"), limit);
        assign(&config, &["maxmemory", "1mb"]).unwrap();
        config.rewrite(&[], None).unwrap();
        let text = fs::read_to_string(dir.path().join("redis.conf")).unwrap();
        assert!(text.contains("\nmaxmemory 1mb\n"), "{text}");
    }
    for word in ["0%", "101%", "x%", "-1%", "%", "automatic"] {
        assert!(load_with(dir.path(), &format!("maxmemory {word}"), &[]).is_err(), "{word}");
    }
}

#[test]
fn rewrite_writes_the_sources_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let included = dir.path().join("more.conf");
    fs::write(&included, "source more more:{id} sqlite:m.db\n").unwrap();
    let file = format!(
        "# rows\nsource a a:{{id}}  postgres://me:secret@h/d\nSOURCE b b:{{id}} sqlite:'with blank.db' ttl 60s\n\
         source c c:{{id}} sqlite:c.db\n# end\nport 43821\ninclude {}\n",
        included.display()
    );
    let config = load_with(dir.path(), &file, &["--source", "told", "told:{id}", "sqlite:t.db"]).unwrap();
    let rewritten = |served: &[mapping::Spec]| {
        config.rewrite(served, None).unwrap();
        fs::read_to_string(dir.path().join("redis.conf")).unwrap()
    };
    let mut served: Vec<mapping::Spec> = config.sources().cloned().collect();
    let names: Vec<&str> = served.iter().map(|spec| &*spec.name).collect();
    assert_eq!(names, ["a", "b", "c", "more", "told"]);
    assert_eq!(rewritten(&served), file, "nothing changed");

    let spec = |words: &[&str]| mapping::Spec::parse(words.iter().copied()).unwrap();
    served.retain(|spec| !["c", "told"].contains(&&*spec.name));
    served[0] = spec(&["a", "a:{id}", "postgres://me:other@h/d", "as", "hash"]);
    served.push(spec(&["new", "n\u{e9}w:{id}", "mongodb://u:p#\"@h/d", "columns", "x y,z", "pool", "9"]));
    let expect = file
        .replace("a:{id}  postgres://me:secret@h/d", "a:{id} postgres://me:other@h/d as hash")
        .replace("source c c:{id} sqlite:c.db\n", "")
        + "\n# Generated by CONFIG REWRITE\n\
           source new \"n\\xc3\\xa9w:{id}\" \"mongodb://u:p#\\\"@h/d\" columns \"x y,z\" pool 9\n";
    assert_eq!(rewritten(&served), expect);
    assert_eq!(rewritten(&served), expect, "a second time nothing changes");
    let again = load_with(dir.path(), &expect, &[]).unwrap();
    let read: Vec<mapping::Spec> = again.sources().cloned().collect();
    let order = |name: &str| read.iter().find(|spec| spec.name == name);
    assert!(
        served.iter().all(|spec| order(&spec.name) == Some(spec)) && read.len() == served.len(),
        "{read:?}"
    );
    let none = rewritten(&[]);
    assert!(
        !none.contains("sqlite") && !none.contains("mongodb") && none.contains("# rows\n# end\n"),
        "{none}"
    );
}

#[test]
fn rewrite_without_a_file_says_so() {
    let error = Config::default().rewrite(&[], None).unwrap_err();
    assert_eq!(error, "ERR The server is running without a config file");
}

#[test]
fn every_directive_survives_a_rewrite() {
    let mut values: Vec<Vec<u8>> = table().iter().map(|row| row.default.as_bytes().to_vec()).collect();
    let usual = values.clone();
    for (row, value) in table().iter().zip(&mut values) {
        *value = match row.kind {
            _ if matches!(row.effect, Effect::Only(..)) => continue,
            Kind::Bool if row.default == "yes" => b"no".to_vec(),
            Kind::Bool => b"yes".to_vec(),
            Kind::Text => b" \"odd\" \x01\xff# ".to_vec(),
            Kind::Memory { .. } => b"3145728".to_vec(),
            Kind::Words => b"a ::1".to_vec(),
            _ => continue,
        };
    }
    let text = rewrite::rewritten(b"", &values, &usual, &[], None);
    let mut draft = Draft::defaults();
    let sources = Sources { stdin: true, ..Sources::default() };
    draft.read(&sources, &mut &text[..]).unwrap();
    for ((row, expect), found) in table().iter().zip(&values).zip(&draft.values) {
        assert_eq!(expect, found, "{}", row.name);
    }
}

#[test]
fn replies_are_pairs_and_errors() {
    let config = Config::default();
    let reply = |words: &[&str], f: &dyn Fn(Args<'_>, &mut Reply)| {
        let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        let mut out = Reply::new(false);
        f(OwnedArgs::from_slices(&words).args(), &mut out);
        String::from_utf8(out.into_bytes()).unwrap()
    };
    let text = reply(&["config", "get", "hz", "maxmemory"], &|args, out| super::get(&config, args, out));
    assert_eq!(text, "*4\r\n$2\r\nhz\r\n$2\r\n10\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n");
    let text = reply(&["config", "set", "hz", "7"], &|args, out| super::set(&config, args, true, out));
    assert_eq!(text, "+OK\r\n");
    let text = reply(&["config", "set", "hz", "x"], &|args, out| super::set(&config, args, true, out));
    assert!(text.starts_with("-ERR CONFIG SET failed"), "{text}");
}

/// Compares with the answer of Redis 7.0 to `CONFIG GET *`, started without a file. The differences are
/// listed.
#[test]
fn config_get_agrees_with_redis() {
    const DIFFERENT: [(&str, &str); 4] = [
        ("bind", "this machine only, unless asked"),
        ("io-threads", "0 stands for one per core"),
        ("repl-backlog-size", "a replica that was away for a moment goes on"),
        ("repl-diskless-load", "readers go on during a full copy, where memory allows"),
    ];
    let config = Config::default();
    for line in include_str!("../tests/data/config-redis-7.0.tsv").lines() {
        let (name, theirs) = line.split_once('\t').unwrap();
        let ours = config.value(name).unwrap_or_else(|| panic!("{name} is missing"));
        let ours = String::from_utf8(ours).unwrap();
        if ours != theirs {
            assert!(DIFFERENT.iter().any(|(n, _)| *n == name), "{name}: {ours} instead of {theirs}");
        }
    }
}

/// A random word of bytes that are hard to split: quotes, escapes, blanks.
fn hostile_word(random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    const PIECES: [&[u8]; 28] = [
        b"\0",
        b"\r",
        b"\n",
        b" ",
        b"\t",
        b"\x0b",
        b"\"",
        b"'",
        b"\\",
        b"\\x",
        b"\xff",
        b"#",
        b"=",
        b",",
        b"-",
        b"-1",
        b"0",
        b"9223372036854775807",
        b"18446744073709551616",
        b"1e309",
        b"nan",
        b"100%",
        b"1gb",
        b"KEA",
        b"yes",
        b"normal",
        b"{id}",
        b"%",
    ];
    (0..random(5)).flat_map(|_| PIECES[random(PIECES.len())]).copied().collect()
}

#[test]
fn no_value_of_a_directive_and_no_line_of_a_file_is_read_for_ever_or_makes_it_panic() {
    let mut seed = 7;
    let mut random = |below: usize| {
        seed = stdx::hash::hash_u64(seed);
        seed as usize % below
    };
    let config = load("").unwrap();
    for directive in table() {
        for _ in 0..40 {
            let value = hostile_word(&mut random);
            let _ = config.set(&[directive.name.as_bytes(), &value], true);
            let words: Vec<Vec<u8>> = (0..random(4)).map(|_| hostile_word(&mut random)).collect();
            let _ = directive.accept(&words, &config.value(directive.name).unwrap());
        }
    }
    let _ = found(&load("").unwrap(), &["*\\", "[", "[^"]);
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..300 {
        let mut file = Vec::new();
        for _ in 0..4 {
            file.extend(table()[random(table().len())].name.as_bytes());
            file.push(b' ');
            file.extend(hostile_word(&mut random));
            file.push(b'\n');
        }
        let path = dir.path().join("hostile.conf");
        fs::write(&path, file).unwrap();
        let Invocation::Serve(sources) = parse([path.into_os_string()]).unwrap() else {
            panic!("not a start")
        };
        let _ = Config::load(&sources, &mut std::io::empty());
    }
    for _ in 0..2000 {
        let words: Vec<Vec<u8>> = (0..3 + random(6)).map(|_| hostile_word(&mut random)).collect();
        let mut words: Vec<String> =
            words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        words[0] = "name".to_owned();
        words[1].insert_str(0, "a{id}");
        if let Some(option) = words.get_mut(3) {
            let known =
                ["ttl", "columns", "path", "id-type", "gather", "budget", "pool", "jitter", "modified"];
            *option = known[random(known.len())].to_owned();
        }
        let _ = mapping::Spec::parse(words.iter().map(|word| &**word));
    }
}
