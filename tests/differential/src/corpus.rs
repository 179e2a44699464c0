//! Ready-made texts: Lua scripts, function libraries, and requests that no client library writes.

use crate::grammar::Since;
use crate::step::Check;
use crate::words;
use std::sync::OnceLock;
use support::rng::Rng;

pub struct Script {
    pub check: Check,
    /// The oracles that know its features.
    pub since: Since,
    /// The words after the script's text: number of keys, keys, arguments.
    header: &'static str,
    pub body: &'static str,
}

impl Script {
    pub fn arguments(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let draw = |word: &str, rng: &mut Rng| {
            words::generate(word, rng).unwrap_or_else(|| word.as_bytes().to_vec())
        };
        self.header.split(' ').map(|word| draw(word, rng)).collect()
    }
}

/// The scripts of `scripts/corpus.lua`. Sections start with `--- check | numkeys words`; the check may name
/// the oracles that know it, as in the tables.
pub fn scripts() -> &'static [Script] {
    static SCRIPTS: OnceLock<Vec<Script>> = OnceLock::new();
    SCRIPTS.get_or_init(|| {
        sections(include_str!("../scripts/corpus.lua"))
            .map(|(header, body)| {
                let (check, header) = header.split_once('|').unwrap_or(("=", header));
                let (check, since) = match check.trim().split_once('@') {
                    Some((check, since)) => (Check::named(check), Since::named(since)),
                    None => (Check::named(check.trim()), Some(Since::Always)),
                };
                let (Some(check), Some(since)) = (check, since) else {
                    panic!("scripts/corpus.lua: cannot read {header:?}");
                };
                Script { check, since, header: header.trim(), body }
            })
            .collect()
    })
}

/// The function libraries of `scripts/libraries.lua`, good and bad.
pub fn libraries() -> &'static [&'static str] {
    static LIBRARIES: OnceLock<Vec<&'static str>> = OnceLock::new();
    LIBRARIES
        .get_or_init(|| sections(include_str!("../scripts/libraries.lua")).map(|(_, body)| body).collect())
}

fn sections(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.split("\n--- ").skip(1).map(|section| {
        let (header, body) = section.split_once('\n').unwrap_or((section, ""));
        (header.trim(), body.trim_end())
    })
}

pub fn sha1_hex(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

pub const RAW: &[&[u8]] = &[
    b"PING\r\n",
    b"PING\n",
    b"\r\n\r\nPING\r\n",
    b"  PING   hello  \r\n",
    b"SET raw 'a b\\'c'\r\nGET raw\r\n",
    b"SET raw \"a\\x41\\n\\t\\\\\"\r\nGET raw\r\n",
    b"SET raw \"unbalanced\r\n",
    b"SET raw 'a'b\r\n",
    b"ECHO \"\"\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"*0\r\n*1\r\n$4\r\nPING\r\n",
    b"*-1\r\n*1\r\n$4\r\nPING\r\n",
    b"*-5\r\nPING\r\n",
    b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$-5\r\nPING\r\n",
    b"*1\r\n$x\r\n",
    b"*1\r\n:4\r\n",
    b"*1\r\nPING\r\n",
    b"*x\r\n",
    b"*1048577\r\n",
    b"*1048576000\r\n",
    b"*99999999999999999999\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n$99999999999999999999\r\n",
    b"*1\r\n$4 \r\nPING\r\n",
    b"* 1\r\n$4\r\nPING\r\n",
    b"*+1\r\n$4\r\nPING\r\n",
    b"*01\r\n$4\r\nPING\r\n",
    b"$4\r\nPING\r\n",
    b"+PING\r\n",
    b"GET\r\n",
    b"NOSUCH a b c\r\n",
    b"*2\r\n$6\r\nnosuch\r\n$3\r\na\r\n\r\n",
    b"POST / HTTP/1.1\r\n",
    b"Host: example\r\n",
    b"QUIT\r\n",
    b"QUIT now\r\n",
    b"*3\r\n$3\r\nSET\r\n$3\r\nraw\r\n$2\r\n\r\n\r\n*2\r\n$3\r\nGET\r\n$3\r\nraw\r\n",
    b"CLIENT REPLY SKIP\r\nPING\r\nPING two\r\n",
    b"CLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\nPING\r\n",
    b"CLIENT REPLY OFF\r\nCLIENT REPLY SKIP\r\nPING\r\nCLIENT REPLY ON\r\n",
    b"CLIENT REPLY SKIP\r\nSET raw 1\r\nINCR raw\r\n",
    b"MULTI\r\nSET raw 1\r\nQUIT\r\n",
    b"MULTI\r\n*1\r\n$x\r\n",
    b"RESET\r\nPING\r\n",
];
