//! The command tables: the lines of `groups/*.txt`, and how a command is drawn from one.
//!
//! ```text
//! # weight  check  command
//! 5  =        SET str val [NX|XX] [GET] [EX secs|KEEPTTL]
//! 2  pairs    HGETALL hash
//! 3  =        ZUNION #zset [WEIGHTS weight+] [AGGREGATE (SUM|MIN)]
//! 1  =!       SHUTDOWN junk
//! 2  =@7.2    CLIENT SETINFO LIB-NAME name
//! 1  scene    spop
//! ```
//!
//! The words of [`crate::words`] are drawn; all others, and 'quoted' ones, stand for themselves. `[a|b]` is
//! one of the alternatives or nothing, `(a|b)` one of them. `x*` is none to three of it, `x+` one to four,
//! `#x` a number followed by that many.
//!
//! The check says how replies are compared ([`crate::step::Check`]). `!` after it forbids random damage (for
//! commands that would wait, close or stop something). `@7.2`, `@redis`, `@redis8`, `@valkey9`, `@valkey9.1`,
//! `@new` (Redis 8 or Valkey 9) or `@not-redis8` names the oracles that know the form.
//!
//! `share`, `mix` and `oracles` lines describe the whole group. A `scene` is several steps written in Rust
//! ([`crate::scenes`]).

use crate::identity::Identity;
use crate::step::Check;
use crate::words;
use support::rng::Rng;

pub struct Group {
    pub name: &'static str,
    /// Its part of all streams, relative to the others'.
    pub share: usize,
    /// Percentage of everyday commands of other groups mixed in.
    pub mix: usize,
    /// The oracles that know this group at all.
    pub since: Since,
    pub lines: Vec<Line>,
}

impl Group {
    /// Draws a line that the oracle knows, by weight.
    pub fn draw(&self, oracle: &Identity, rng: &mut Rng, scenes: bool) -> &Line {
        let fits =
            |line: &&Line| line.since.known_to(oracle) && (scenes || matches!(line.body, Body::Command(_)));
        let total: usize = self.lines.iter().filter(fits).map(|line| line.weight).sum();
        let mut ticket = rng.below(total);
        for line in self.lines.iter().filter(fits) {
            if ticket < line.weight {
                return line;
            }
            ticket -= line.weight;
        }
        unreachable!("the ticket is below the sum of the weights")
    }
}

pub struct Line {
    pub weight: usize,
    pub check: Check,
    pub damage: bool,
    pub since: Since,
    pub body: Body,
}

pub enum Body {
    Command(Vec<Part>),
    Scene(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Always,
    V7_2,
    Redis,
    Redis8,
    Valkey9,
    Valkey9_1,
    New,
    NotRedis8,
}

impl Since {
    /// The name after `@` in the tables.
    pub fn named(name: &str) -> Option<Since> {
        Some(match name {
            "7.2" => Since::V7_2,
            "redis" => Since::Redis,
            "redis8" => Since::Redis8,
            "valkey9" => Since::Valkey9,
            "valkey9.1" => Since::Valkey9_1,
            "new" => Since::New,
            "not-redis8" => Since::NotRedis8,
            _ => return None,
        })
    }

    pub fn known_to(self, oracle: &Identity) -> bool {
        let redis = oracle.flavour == "redis";
        match self {
            Since::Always => true,
            Since::V7_2 => oracle.version >= (7, 2),
            Since::Redis => redis,
            Since::Redis8 => redis && oracle.version >= (8, 0),
            Since::Valkey9 => !redis && oracle.version >= (9, 0),
            Since::Valkey9_1 => !redis && oracle.version >= (9, 1),
            Since::NotRedis8 => !redis || oracle.version < (8, 0),
            Since::New => oracle.version >= if redis { (8, 0) } else { (9, 0) },
        }
    }
}

#[derive(Debug)]
pub enum Part {
    Literal(&'static str),
    Word(&'static str),
    /// One of the alternatives; with `true` perhaps none.
    Choice(Vec<Vec<Part>>, bool),
    Repeat(Box<Part>, usize, usize),
    Counted(Box<Part>),
}

/// The tables, in the order in which `--groups` lists them.
pub fn groups() -> Vec<Group> {
    macro_rules! group {
        ($name:literal) => {
            parse_group($name, include_str!(concat!("../groups/", $name, ".txt")))
        };
    }
    vec![
        group!("connection"),
        group!("keys"),
        group!("strings"),
        group!("bitmaps"),
        group!("hyperloglog"),
        group!("lists"),
        group!("blocking"),
        group!("hashes"),
        group!("field_ttl"),
        group!("serialized"),
        group!("sets"),
        group!("zsets"),
        group!("streams"),
        group!("geo"),
        group!("sort"),
        group!("transactions"),
        group!("scripts"),
        group!("functions"),
        group!("pubsub"),
        group!("notifications"),
        group!("server"),
        group!("protocol"),
        group!("additions"),
        group!("acl"),
        group!("acl_databases"),
    ]
}

fn parse_group(name: &'static str, text: &'static str) -> Group {
    let mut group = Group { name, share: 10, mix: 0, since: Since::Always, lines: Vec::new() };
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = || -> ! { panic!("groups/{name}.txt, line {}: cannot read {line:?}", at + 1) };
        let number = |text: &str| text.trim().parse().unwrap_or_else(|_| bad());
        if let Some(rest) = line.strip_prefix("share ") {
            group.share = number(rest);
        } else if let Some(rest) = line.strip_prefix("mix ") {
            group.mix = number(rest);
        } else if let Some(rest) = line.strip_prefix("oracles ") {
            group.since = Since::named(rest.trim()).unwrap_or_else(|| bad());
        } else {
            group.lines.push(parse_line(line).unwrap_or_else(|| bad()));
        }
    }
    group
}

fn parse_line(line: &'static str) -> Option<Line> {
    let (weight, rest) = line.split_once(char::is_whitespace)?;
    let (check, rest) = rest.trim_start().split_once(char::is_whitespace)?;
    let rest = rest.trim();
    let weight = weight.parse().ok()?;
    let (check, since) = match check.split_once('@') {
        Some((check, since)) => (check, Since::named(since)?),
        None => (check, Since::Always),
    };
    let damage = !check.ends_with('!');
    let check = check.trim_end_matches('!');
    if check == "scene" {
        return Some(Line { weight, check: Check::Exact, damage, since, body: Body::Scene(rest) });
    }
    let mut tokens = tokens(rest);
    let body = parse_parts(&mut tokens, &[]);
    if !tokens.is_empty() {
        return None;
    }
    Some(Line { weight, check: Check::named(check)?, damage, since, body: Body::Command(body) })
}

/// Tokens in reverse, so that `pop` takes the first.
fn tokens(text: &'static str) -> Vec<&'static str> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '[' | ']' | '(' | ')' | '|' | '#' | '*' | '+' => 1,
            '\'' => 2 + rest[1..].find('\'').unwrap_or(rest.len() - 2),
            _ => rest.find([' ', '[', ']', '(', ')', '|', '*', '+']).unwrap_or(rest.len()),
        };
        out.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    out.reverse();
    out
}

fn parse_parts(tokens: &mut Vec<&'static str>, until: &[&str]) -> Vec<Part> {
    let mut parts = Vec::new();
    while let Some(&token) = tokens.last() {
        if until.contains(&token) {
            break;
        }
        tokens.pop();
        let part = match token {
            "#" => {
                let part = parse_one(tokens);
                Part::Counted(Box::new(part))
            }
            _ => {
                tokens.push(token);
                parse_one(tokens)
            }
        };
        let part = match tokens.last() {
            Some(&"*") => Part::Repeat(Box::new(part), 0, 3),
            Some(&"+") => Part::Repeat(Box::new(part), 1, 4),
            _ => {
                parts.push(part);
                continue;
            }
        };
        tokens.pop();
        parts.push(part);
    }
    parts
}

fn parse_one(tokens: &mut Vec<&'static str>) -> Part {
    let token = tokens.pop().unwrap_or("");
    let (close, optional) = match token {
        "[" => ("]", true),
        "(" => (")", false),
        _ if token.starts_with('\'') => return Part::Literal(token.trim_matches('\'')),
        _ if words::generate(token, &mut Rng::new(0, 0)).is_some() => return Part::Word(token),
        _ => return Part::Literal(token),
    };
    let mut alternatives = Vec::new();
    loop {
        alternatives.push(parse_parts(tokens, &["|", close]));
        match tokens.pop() {
            Some("|") => {}
            _ => return Part::Choice(alternatives, optional),
        }
    }
}

/// Draws the arguments of one command.
pub fn expand(parts: &[Part], rng: &mut Rng, out: &mut Vec<Vec<u8>>) {
    for part in parts {
        expand_one(part, rng, out);
    }
}

fn expand_one(part: &Part, rng: &mut Rng, out: &mut Vec<Vec<u8>>) {
    match part {
        Part::Literal(text) => out.push(text.as_bytes().to_vec()),
        Part::Word(word) => {
            out.push(words::generate(word, rng).unwrap_or_else(|| panic!("no word {word:?} in words.rs")));
        }
        Part::Choice(alternatives, optional) => {
            if !optional || rng.percent(45) {
                expand(&alternatives[rng.below(alternatives.len())], rng, out);
            }
        }
        Part::Repeat(part, low, high) => {
            for _ in 0..rng.integer(*low as i64, *high as i64) {
                expand_one(part, rng, out);
            }
        }
        Part::Counted(part) => {
            let n = rng.integer(1, 4);
            let said = if rng.percent(4) { rng.integer(-1, 6) } else { n };
            out.push(said.to_string().into_bytes());
            for _ in 0..n {
                expand_one(part, rng, out);
            }
        }
    }
}

/// Damages a command in a way that people do, or changes its letter case.
pub fn damage(args: &mut Vec<Vec<u8>>, rng: &mut Rng) {
    if rng.percent(8) {
        let upper = args[0].to_ascii_lowercase();
        args[0] = upper;
    }
    if !rng.percent(5) {
        return;
    }
    let at = rng.below(args.len());
    match rng.below(5) {
        0 if args.len() > 1 => drop(args.remove(at.max(1))),
        1 => args.insert(at + 1, words::junk(rng)),
        2 => args.push(words::junk(rng)),
        3 if at > 0 => args.insert(at, args[at].clone()),
        _ if at > 0 => args[at] = words::junk(rng),
        _ => {}
    }
}
