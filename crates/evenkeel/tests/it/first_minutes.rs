//! The first minutes of a new user: `make run`, Ctrl-C, a machine that cannot compile.

use crate::support::{PATIENCE, Server, encode_line, foreign, free_port, said};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Demonstration folders in a folder for temporary files.
fn demonstrations(temporary: &Path) -> usize {
    let names = fs::read_dir(temporary).expect("a folder").flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("evenkeel-demo-")).count()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes a program of the shell.
fn program(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a program");
}

fn kill(words: &[&str]) {
    let status = Command::new("kill").args(words).status().expect("kill");
    // A group that has ended gets no signal.
    assert!(status.success() || words[1] == "KILL", "{words:?}");
}

/// A server with its demonstration, and the demonstration's folder.
fn with_demonstration() -> (Server, PathBuf) {
    let server = Server::start_with(&["--demo", "yes", "--event-loops", "2"]);
    let folder = std::env::temp_dir().join(format!("evenkeel-demo-{}", server.pid()));
    assert!(folder.join("products.db").exists());
    (server, folder)
}

#[test]
fn signals_that_come_together_end_the_server_in_order() {
    if foreign() {
        return;
    }
    let (mut server, folder) = with_demonstration();
    let pid = server.pid().to_string();
    // Both signals wait when it runs again.
    for name in ["STOP", "INT", "TERM", "CONT"] {
        kill(&["-s", name, &pid]);
    }
    assert_eq!(server.exit_code(), Some(0), "{}", server.output());
    assert!(!folder.exists(), "{} is left", folder.display());
}

#[test]
fn a_later_signal_ends_at_once_a_server_that_cannot_end_and_leaves_nothing() {
    if foreign() {
        return;
    }
    let (mut server, folder) = with_demonstration();
    // The next client is on one loop, all others on the second.
    server.client().expect("DEBUG POINT accept HOLD 0", "+OK");
    let mut control = server.client();
    control.expect("DEBUG POINT accept HOLD 1000", "+OK");
    let mut culprit = server.client();
    culprit.expect("PING", "+PONG");
    control.expect("DEBUG POINT loop HOLD 1", "+OK");
    culprit.send(encode_line("DEBUG STALL"));
    let deadline = Instant::now() + PATIENCE;
    while control.call("DEBUG POINT loop") != ":1" {
        assert!(Instant::now() < deadline, "the loop is not held up");
    }
    // The end waits for that loop.
    while server.is_running() {
        server.signal("TERM");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.exit_code(), Some(130), "{}", server.output());
    assert!(!folder.exists(), "{} is left", folder.display());
}

/// A process that leads its group; the whole group ends when a test fails.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill(&["-s", "KILL", "--", &format!("-{}", self.0.id())]);
        }
    }
}

/// `make run` with a compiler that only prints its arguments, as in a terminal in which the user types
/// Ctrl-C.
#[test]
fn make_run_shows_the_compiler_and_ends_with_its_group_and_leaves_nothing() {
    if foreign() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let [target, temporary, bin] = ["target", "tmp", "bin"].map(|name| dir.path().join(name));
    fs::create_dir_all(target.join("quick")).expect("a folder");
    symlink(env!("CARGO_BIN_EXE_evenkeel"), target.join("quick/evenkeel")).expect("a link");
    [&temporary, &bin].into_iter().for_each(|folder| fs::create_dir(folder).expect("a folder"));
    program(&bin.join("cargo"), "echo Compiling: \"$@\" >&2");
    program(&bin.join("rustc"), "echo 'rustc 1.999.0 (0 2026-01-01)'");
    let log = fs::File::create(dir.path().join("output")).expect("a log");
    let output = || fs::read_to_string(dir.path().join("output")).expect("the log");
    let [port, http] = [free_port(), free_port()];
    let make = Command::new("make")
        .args(["run", &format!("ARGS=--port {port} --bind 127.0.0.1")])
        .arg(format!("DEMO=--demo yes --http-port {http}"))
        .current_dir(root())
        .env("CARGO", bin.join("cargo"))
        .env("RUSTC", bin.join("rustc"))
        .env("CARGO_TARGET_DIR", &target)
        .env("TMPDIR", &temporary)
        .env_remove("MAKEFLAGS")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the log"))
        .stderr(log)
        .spawn()
        .expect("make");
    let mut make = Group(make);
    let deadline = Instant::now() + PATIENCE;
    while !output().contains("started, process") || demonstrations(&temporary) == 0 {
        assert!(
            make.0.try_wait().expect("its status").is_none() && Instant::now() < deadline,
            "{}",
            output()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        output().contains("Compiling: build --profile quick -p evenkeel --no-default-features"),
        "{}",
        output()
    );
    let group = format!("-{}", make.0.id());
    // A terminal sends the first to both. When make ends, it passes the second on.
    kill(&["-s", "INT", "--", &group]);
    kill(&["-s", "TERM", "--", &group]);
    make.0.wait().expect("its status");
    // The server may end after make.
    while demonstrations(&temporary) > 0 || std::net::TcpListener::bind(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline + PATIENCE, "the folder or the port stays: {}", output());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(output().contains("received, shutting down"), "{}", output());
}

/// The programs of a machine: those of the shell, and these.
fn machine(programs: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["sh", "sed", "dirname", "mktemp", "rm"] {
        let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(name));
        let found = found.iter().find(|path| path.exists()).expect("a program of the shell");
        symlink(found, dir.path().join(name)).expect("a link");
    }
    programs.iter().for_each(|(name, text)| program(&dir.path().join(name), text));
    dir
}

fn make_run_on(machine: &Path) -> Output {
    let make = ["/bin/make", "/usr/bin/make", "/usr/local/bin/make"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let mut command = Command::new(make.expect("make"));
    command.args(["run", "DEMO="]).current_dir(root()).env("PATH", machine).stdin(Stdio::null());
    ["CARGO", "RUSTC", "CC", "MAKEFLAGS"].iter().for_each(|name| _ = command.env_remove(name));
    command.output().expect("make runs")
}

#[test]
fn a_machine_that_cannot_compile_says_in_one_line_what_to_install() {
    let cargo = ("cargo", "echo compiled; exit 7");
    let rustc = ("rustc", "echo 'rustc 1.999.0-nightly (0 2026-01-01)'");
    let (old, mute) = (("rustc", "echo 'rustc 1.63.0 (0 2022-01-01)'"), ("rustc", "exit 1"));
    let (cc, broken) = (("cc", "exit 0"), ("cc", "echo 'cannot find crt1.o' >&2; exit 1"));
    for (programs, words) in [
        (vec![], ["no cargo here", "https://rustup.rs"]),
        (vec![cargo], ["no rustc here", "https://rustup.rs"]),
        (vec![cargo, mute, cc], ["does not say its version", "rustup default stable"]),
        (vec![cargo, old, cc], ["here is 1.63", "rustup update stable"]),
        (vec![cargo, rustc], ["no C compiler 'cc' here", "apt install gcc libc6-dev"]),
        (vec![cargo, rustc, broken], ["'cc' cannot make a program here", "apt install gcc libc6-dev"]),
    ] {
        let output = make_run_on(machine(&programs).path());
        let text = said(&output);
        // Make's own line comes behind it.
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("make")).collect();
        assert!(!output.status.success() && lines.len() == 1, "{text}");
        assert!(words.iter().all(|word| lines[0].contains(word)), "{words:?}: {text}");
    }
    let output = make_run_on(machine(&[cargo, rustc, cc]).path());
    assert!(said(&output).contains("compiled"), "{}", said(&output));
}
