//! Compiles Lua 5.1 from the sources of crate `lua-src`, with one line changed.
//!
//! Lua hashes only some characters of a string of 32 bytes or more, so that of a million keys that differ in a few digits
//! hundreds have one hash, and each look at one of them is compared with all. Redis's Lua hashes all characters. The order in
//! which `pairs` and `cjson.encode` go through a table follows from the hashes, so that is done here in the same way.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const FILE: &str = "lstring.c";
const BEFORE: &str = "size_t step = (l>>5)+1;";
const AFTER: &str = "size_t step = 1;";

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let source = source()?;
    let changed = out.join(FILE);
    let text = fs::read_to_string(source.join(FILE))?;
    assert!(text.contains(BEFORE), "this version of lua-src has another {FILE}");
    fs::write(&changed, text.replace(BEFORE, AFTER))?;
    let mut build = cc::Build::new();
    build.include(&source).define("LUA_USE_LINUX", None).warnings(false).file(changed);
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        build.define("LUA_USE_APICHECK", None);
    }
    for entry in fs::read_dir(&source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") && !path.ends_with(FILE) {
            build.file(path);
        }
    }
    build.compile("lua5.1");
    println!("cargo:rerun-if-changed=build.rs");
    Ok(())
}

/// Where cargo has put Lua's sources.
fn source() -> io::Result<PathBuf> {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let target = env::var("TARGET").expect("cargo sets it");
    // What is not needed here may not have been fetched; then it is, if that is possible.
    let ask = |more: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(["metadata", "--format-version", "1", "--filter-platform", &target]).args(more);
        command.output()
    };
    let asked = match ask(&["--offline"])? {
        found if found.status.success() => found,
        _ => ask(&[])?,
    };
    let text = String::from_utf8_lossy(&asked.stdout);
    let manifest = text.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let package = manifest.map(Path::new).filter_map(Path::parent);
    let is_lua =
        |dir: &&Path| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lua-src"));
    let found = package.filter(is_lua).map(|dir| dir.join("lua-5.1.5")).find(|dir| dir.exists());
    found.ok_or_else(|| {
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        io::Error::new(io::ErrorKind::NotFound, format!("where is crate lua-src? {said}"))
    })
}
