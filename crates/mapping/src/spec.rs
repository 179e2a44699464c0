//! The definition of a source, and its notation in the `source` directive and in EVENKEEL SOURCE ADD.
//!
//! ```text
//! source items item:{id} postgres://app@127.0.0.1/shop table items id id as json ttl 1d path /items
//!        name  pattern   url                           option value …
//! ```

use crate::{Id, shown, spelling};
use std::time::Duration;

/// The keys of a source: the text before the id and the text after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    pub prefix: Box<[u8]>,
    pub suffix: Box<[u8]>,
}

impl Pattern {
    /// Reads `item:{id}`. Errors: no `{id}`, two of them, or nothing before it, which would make sources hard
    /// to tell apart.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let Some((prefix, suffix)) = text.split_once("{id}") else {
            return Err(format!("key pattern '{text}' has no {{id}}"));
        };
        if prefix.is_empty() {
            return Err(format!("key pattern '{text}' must have something before {{id}}"));
        }
        if suffix.contains("{id}") {
            return Err(format!("key pattern '{text}' has more than one {{id}}"));
        }
        Ok(Pattern { prefix: prefix.as_bytes().into(), suffix: suffix.as_bytes().into() })
    }

    /// The id in a key, if the key belongs to this source. Cost: O(prefix + suffix).
    #[inline]
    pub fn id<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        let rest = key.strip_prefix(&*self.prefix)?.strip_suffix(&*self.suffix)?;
        (!rest.is_empty()).then_some(rest)
    }

    /// The key of an id.
    pub fn key(&self, id: &[u8]) -> Id {
        [&*self.prefix, id, &*self.suffix].concat().into()
    }

    /// Whether some key could belong to both.
    pub fn overlaps(&self, other: &Pattern) -> bool {
        let (a, b) = (&self.prefix, &other.prefix);
        let (c, d) = (&self.suffix, &other.suffix);
        (a.starts_with(b) || b.starts_with(a)) && (c.ends_with(d) || d.ends_with(c))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy;
        write!(f, "{}{{id}}{}", text(&self.prefix), text(&self.suffix))
    }
}

/// How ids are spelled and compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdType {
    /// As the database declares the column.
    Auto,
    Integer,
    Text,
    Uuid,
    ObjectId,
}

impl IdType {
    /// Names the fault of `id` as an id of this type, whatever the database. None: nothing, or only the
    /// database can tell. Cost: O(id).
    pub fn complaint(self, id: &[u8]) -> Option<&'static str> {
        let (fits, complaint) = match self {
            IdType::Auto | IdType::Text => return None,
            IdType::Integer => {
                (spelling::integer(id).is_some(), "an id is a 64-bit integer in its shortest spelling")
            }
            IdType::Uuid => (spelling::is_uuid(id), "an id is a UUID in small letters, with hyphens"),
            IdType::ObjectId => {
                (spelling::is_object_id(id), "an id is 24 hexadecimal digits in small letters")
            }
        };
        (!fits).then_some(complaint)
    }
}

/// The form that rows are cached in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A string: one JSON object.
    Json,
    /// A hash: column → text.
    Hash,
}

/// The effect of a client's write to a key of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// An error.
    Refuse,
    /// The cached item is dropped; nothing else happens.
    Evict,
    /// The write changes the cached item, until that is dropped.
    Local,
}

/// A source, as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    pub name: String,
    pub pattern: Pattern,
    /// Its scheme names the kind of database: `postgres://`, `mongodb://`, `sqlite:`.
    pub url: String,
    /// The table or collection. Default: the source's name.
    pub table: String,
    /// Default: `id`, for MongoDB `_id`.
    pub id: Option<String>,
    pub id_type: IdType,
    /// None: all.
    pub columns: Option<Vec<String>>,
    pub form: Form,
    pub ttl: Duration,
    /// Part of the time to live that is taken off at random, in percent.
    pub jitter: u64,
    /// How long the absence of a row is remembered.
    pub negative_ttl: Duration,
    /// How long past its time to live an item may be served while the database is down.
    pub stale_if_error: Duration,
    /// How long changes may go unseen before items that were cached earlier count as past their time.
    pub blind: Duration,
    /// Most bytes of items; 0: no limit of its own.
    pub budget: u64,
    /// Connections that load.
    pub pool: usize,
    /// How long a load may take.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    /// Longest wait of a miss for others to be loaded with it, while there are many.
    pub gather: Duration,
    /// Most ids that may wait to be loaded.
    pub queue: usize,
    pub writes: Writes,
    /// Path at which HTTP shows it, such as `/items`.
    pub path: Option<String>,
    /// How long HTTP caches may keep an item without asking; they learn of no change.
    pub max_age: Duration,
    /// The column with the time of a row's last change.
    pub modified: Option<String>,
    /// Whether a changed row that is in use is loaded again at once, rather than with the next request.
    pub refresh: bool,
    /// Whether changes are followed. If not, only the time to live keeps items fresh.
    pub feed: bool,
    /// PostgreSQL: the publication and the slot of the feed. Default: publication `evenkeel_<name>`, and a
    /// slot that each server makes anew.
    pub publication: Option<String>,
    pub slot: Option<String>,
}

/// Memory for waiting ids is allocated when the source is made, so that nothing grows while loops wait for
/// it.
const QUEUE_MAX: u64 = 100_000;
const DAY: u64 = 24 * 3600;
/// Longest `gather`.
const MAX_GATHER: Duration = Duration::from_millis(100);

impl Spec {
    /// Reads `name pattern url [option value …]`. Errors: a text that names the wrong word, without what is
    /// secret in it if that is a url.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Spec, String> {
        let words: Vec<&str> = words.into_iter().collect();
        Spec::read(&words).map_err(|error| {
            let urls = words.iter().filter(|word| word.contains("://"));
            urls.fold(error, |error, url| error.replace(*url, &shown::url(url)))
        })
    }

    fn read(words: &[&str]) -> Result<Spec, String> {
        let mut words = words.iter().copied();
        let (Some(name), Some(pattern), Some(url)) = (words.next(), words.next(), words.next()) else {
            return Err("a source needs a name, a key pattern and a url".into());
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Err(format!("a source's name is made of letters, digits, _ and -, not '{name}'"));
        }
        let mut spec = Spec::usual(name, Pattern::parse(pattern)?, url);
        while let Some(option) = words.next() {
            let Some(value) = words.next() else { return Err(format!("option '{option}' has no value")) };
            spec.set(&option.to_ascii_lowercase(), value)
                .map_err(|e| format!("option '{option}' of source '{name}': {e}"))?;
        }
        Ok(spec)
    }

    fn usual(name: &str, pattern: Pattern, url: &str) -> Spec {
        Spec {
            name: name.into(),
            pattern,
            url: url.into(),
            table: name.into(),
            id: None,
            id_type: IdType::Auto,
            columns: None,
            form: Form::Json,
            ttl: Duration::from_secs(DAY),
            jitter: 10,
            negative_ttl: Duration::from_secs(10),
            stale_if_error: Duration::ZERO,
            blind: Duration::from_secs(60),
            budget: 0,
            pool: 4,
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            gather: Duration::from_micros(500),
            queue: 10_000,
            writes: Writes::Refuse,
            path: None,
            max_age: Duration::ZERO,
            modified: None,
            refresh: true,
            feed: true,
            publication: None,
            slot: None,
        }
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "table" | "collection" => self.table = value.into(),
            "id" => self.id = Some(value.into()),
            "id-type" => self.id_type = choice(value, ID_TYPES)?,
            "columns" => self.columns = columns(value)?,
            "as" => self.form = choice(value, FORMS)?,
            "ttl" => self.ttl = at_least_a_second(duration(value)?)?,
            "jitter" => self.jitter = number(value, 0, 90)?,
            "negative-ttl" => self.negative_ttl = duration(value)?,
            "stale-if-error" => self.stale_if_error = duration(value)?,
            "blind" => self.blind = duration(value)?,
            "budget" => self.budget = bytes(value)?,
            "pool" => self.pool = number(value, 1, 100)? as usize,
            "timeout" => self.timeout = positive(duration(value)?)?,
            "connect-timeout" => self.connect_timeout = positive(duration(value)?)?,
            "gather" => self.gather = at_most(MAX_GATHER, fine_duration(value)?)?,
            "queue" => self.queue = number(value, 1, QUEUE_MAX)? as usize,
            "write" => self.writes = choice(value, WRITES)?,
            "path" => self.path = Some(path(value)?),
            "max-age" => self.max_age = duration(value)?,
            "modified" => self.modified = Some(value.into()),
            "refresh" => self.refresh = choice(value, SWITCH)?,
            "feed" => self.feed = choice(value, SWITCH)?,
            "publication" => self.publication = Some(value.into()),
            "slot" => self.slot = Some(value.into()),
            _ => return Err("no such option".into()),
        }
        Ok(())
    }

    /// The words that [`Spec::parse`] reads it from, without options that have their default.
    pub fn words(&self) -> Vec<String> {
        let usual = Spec::usual(&self.name, self.pattern.clone(), &self.url);
        let mut words = vec![self.name.clone(), self.pattern.to_string(), self.url.clone()];
        let mut add = |option: &str, value: String, differs: bool| {
            if differs {
                words.extend([option.to_owned(), value]);
            }
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        add("table", self.table.clone(), self.table != usual.table);
        add("id", text(&self.id), self.id.is_some());
        add("id-type", name_of(self.id_type, ID_TYPES), self.id_type != usual.id_type);
        add("columns", self.columns.clone().unwrap_or_default().join(","), self.columns.is_some());
        add("as", name_of(self.form, FORMS), self.form != usual.form);
        add("ttl", spelled(self.ttl), self.ttl != usual.ttl);
        add("jitter", self.jitter.to_string(), self.jitter != usual.jitter);
        add("negative-ttl", spelled(self.negative_ttl), self.negative_ttl != usual.negative_ttl);
        add("stale-if-error", spelled(self.stale_if_error), self.stale_if_error != usual.stale_if_error);
        add("blind", spelled(self.blind), self.blind != usual.blind);
        add("budget", self.budget.to_string(), self.budget != usual.budget);
        add("pool", self.pool.to_string(), self.pool != usual.pool);
        add("timeout", spelled(self.timeout), self.timeout != usual.timeout);
        add("connect-timeout", spelled(self.connect_timeout), self.connect_timeout != usual.connect_timeout);
        add("gather", finely_spelled(self.gather), self.gather != usual.gather);
        add("queue", self.queue.to_string(), self.queue != usual.queue);
        add("write", name_of(self.writes, WRITES), self.writes != usual.writes);
        add("path", text(&self.path), self.path.is_some());
        add("max-age", spelled(self.max_age), self.max_age != usual.max_age);
        add("modified", text(&self.modified), self.modified.is_some());
        add("refresh", name_of(self.refresh, SWITCH), self.refresh != usual.refresh);
        add("feed", name_of(self.feed, SWITCH), self.feed != usual.feed);
        add("publication", text(&self.publication), self.publication.is_some());
        add("slot", text(&self.slot), self.slot.is_some());
        words
    }

    /// Its url without what is secret in it ([`shown::url`]).
    pub fn shown_url(&self) -> String {
        shown::url(&self.url)
    }

    /// A driver's words, without what is secret in the url ([`shown::about`]).
    pub fn told(&self, text: &str) -> String {
        shown::about(&self.url, text)
    }
}

type Choices<T> = &'static [(&'static str, T)];

const ID_TYPES: Choices<IdType> = &[
    ("auto", IdType::Auto),
    ("integer", IdType::Integer),
    ("text", IdType::Text),
    ("uuid", IdType::Uuid),
    ("objectid", IdType::ObjectId),
];
const FORMS: Choices<Form> = &[("json", Form::Json), ("hash", Form::Hash)];
const WRITES: Choices<Writes> =
    &[("refuse", Writes::Refuse), ("evict", Writes::Evict), ("local", Writes::Local)];

const SWITCH: Choices<bool> = &[("on", true), ("off", false)];

fn choice<T: Copy>(value: &str, choices: Choices<T>) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(value));
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("'{value}' is none of {}", names.join(", "))
    })
}

fn name_of<T: PartialEq>(value: T, choices: Choices<T>) -> String {
    choices.iter().find(|(_, choice)| *choice == value).map_or("", |(name, _)| name).into()
}

fn columns(value: &str) -> Result<Option<Vec<String>>, String> {
    if value == "*" {
        return Ok(None);
    }
    let names: Vec<String> = value.split(',').map(str::to_owned).collect();
    match names.iter().any(String::is_empty) {
        true => Err(format!("'{value}' names an empty column")),
        false => Ok(Some(names)),
    }
}

fn path(value: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"/-_.~".contains(&b);
    let ok = value.len() > 1 && value.starts_with('/') && !value.ends_with('/') && value.bytes().all(fits);
    if ok { Ok(value.into()) } else { Err(format!("'{value}' is no path such as /items")) }
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let n: Option<u64> = value.parse().ok().filter(|n| (min..=max).contains(n));
    n.ok_or_else(|| format!("'{value}' is no number from {min} to {max}"))
}

/// Reads a number with a unit: `ms`, `s`, `m`, `h`, `d`; `0` needs none.
fn duration(value: &str) -> Result<Duration, String> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (n, unit) = value.split_at(digits);
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => DAY * 1000,
        "" if n == "0" => 1,
        _ => return Err(format!("'{value}' is no time such as 500ms, 10s, 5m, 2h or 1d")),
    };
    let ms = n.parse::<u64>().ok().and_then(|n| n.checked_mul(ms)).filter(|ms| *ms <= 36_500 * DAY * 1000);
    ms.map(Duration::from_millis)
        .ok_or_else(|| format!("'{value}' is no time such as 500ms, 10s, 5m, 2h or 1d"))
}

/// The same, with `us` besides.
fn fine_duration(value: &str) -> Result<Duration, String> {
    match value.strip_suffix("us") {
        Some(n) => number(n, 0, 1_000_000).map(Duration::from_micros),
        None => duration(value),
    }
}

fn finely_spelled(time: Duration) -> String {
    let us = time.as_micros();
    if us.is_multiple_of(1000) { spelled(time) } else { format!("{us}us") }
}

fn at_most(limit: Duration, time: Duration) -> Result<Duration, String> {
    if time > limit { Err(format!("must be at most {}", spelled(limit))) } else { Ok(time) }
}

fn positive(time: Duration) -> Result<Duration, String> {
    if time.is_zero() { Err("must be more than 0".into()) } else { Ok(time) }
}

fn at_least_a_second(time: Duration) -> Result<Duration, String> {
    if time < Duration::from_secs(1) { Err("must be at least 1s".into()) } else { Ok(time) }
}

fn spelled(time: Duration) -> String {
    let ms = time.as_millis() as u64;
    match () {
        _ if ms == 0 => "0".into(),
        _ if ms.is_multiple_of(DAY * 1000) => format!("{}d", ms / (DAY * 1000)),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

/// Reads a number of bytes with a unit as in redis.conf: `kb`, `mb`, `gb` (1024), `k`, `m`, `g` (1000).
fn bytes(value: &str) -> Result<u64, String> {
    let lower = value.to_ascii_lowercase();
    let digits = lower.bytes().take_while(u8::is_ascii_digit).count();
    let (n, unit) = lower.split_at(digits);
    let factor = match unit {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return Err(format!("'{value}' is no number of bytes such as 64mb")),
    };
    let bytes = n.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    bytes.ok_or_else(|| format!("'{value}' is no number of bytes such as 64mb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Spec, String> {
        Spec::parse(text.split(' '))
    }

    #[test]
    fn a_spec_is_read_and_written() {
        let text = "items item:{id} postgres://app:secret@127.0.0.1:5432/shop table things id nr id-type integer columns a,b \
                    as hash ttl 36h jitter 5 negative-ttl 500ms stale-if-error 1h blind 20s budget 67108864 pool 2 timeout 250ms \
                    connect-timeout 1s gather 250us queue 5 write evict path /items max-age 30s modified changed_at refresh off feed off publication p slot s";
        let spec = parse(text).unwrap();
        assert_eq!(spec.words().join(" "), text);
        let table = include_str!("../../../docs/sources.md").lines().filter(|line| line.starts_with('|'));
        let named: String = table.filter_map(|line| line.split('|').nth(1)).collect();
        for option in text.split(' ').skip(3).step_by(2) {
            assert!(named.contains(&format!("`{option}`")), "docs/sources.md has no {option} in its table");
        }
        assert_eq!(spec.shown_url(), "postgres://app:***@127.0.0.1:5432/shop");
        assert_eq!((spec.ttl.as_secs(), spec.form, spec.writes), (36 * 3600, Form::Hash, Writes::Evict));
        let short = parse("items item:{id} sqlite:demo.db").unwrap();
        assert_eq!(short.words(), ["items", "item:{id}", "sqlite:demo.db"]);
        assert_eq!((short.table.as_str(), short.ttl.as_secs()), ("items", DAY));
        assert_eq!(parse("i i:{id} sqlite:x budget 64mb").unwrap().budget, 64 << 20);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |options: &str| parse(&format!("items item:{{id}} sqlite:x {options}")).unwrap_err();
        assert_eq!(
            wrong("ttl 5"),
            "option 'ttl' of source 'items': '5' is no time such as 500ms, 10s, 5m, 2h or 1d"
        );
        assert_eq!(wrong("as xml"), "option 'as' of source 'items': 'xml' is none of json, hash");
        assert_eq!(wrong("colour red"), "option 'colour' of source 'items': no such option");
        assert_eq!(wrong("ttl"), "option 'ttl' has no value");
        assert_eq!(wrong("jitter 91"), "option 'jitter' of source 'items': '91' is no number from 0 to 90");
        for bad in [
            "ttl 0",
            "ttl 99999999999999999999d",
            "budget 1tb",
            "path items",
            "path /",
            "pool 0",
            "gather 5",
            "gather xus",
            "gather 101ms",
            "gather 1000001us",
            "columns a,,b",
        ] {
            wrong(bad);
        }
        assert!(parse("items item:42 sqlite:x").unwrap_err().contains("no {id}"));
        assert!(parse("items {id} sqlite:x").unwrap_err().contains("before {id}"));
        assert!(parse("a/b a:{id} sqlite:x").unwrap_err().contains("letters, digits"));
        assert!(parse("a a:{id}").unwrap_err().contains("a name, a key pattern and a url"));
        for text in
            ["items URL sqlite:x", "URL a:{id} x", "a a:{id} sqlite:x URL 1", "a a:{id} sqlite:x ttl URL"]
        {
            let error = parse(&text.replace("URL", "postgres://u:s/3?cr@t@h/d")).unwrap_err();
            assert!(error.contains("'postgres://***'") && !error.contains("cr@t"), "{error}");
        }
    }

    #[test]
    fn ids_of_a_type_are_told_from_others() {
        for (id_type, good, bad) in [
            (IdType::Integer, "-42", "042"),
            (IdType::Uuid, "0f8fad5b-d9cb-469f-a165-70867728950e", "0F8FAD5B-D9CB-469F-A165-70867728950E"),
            (IdType::ObjectId, "5f2b3c4d5e6f708192a3b4c5", "5f2b3c4d5e6f708192a3b4c"),
        ] {
            assert_eq!(id_type.complaint(good.as_bytes()), None);
            assert!(id_type.complaint(bad.as_bytes()).is_some(), "{bad}");
            assert_eq!(IdType::Auto.complaint(bad.as_bytes()), None);
        }
    }

    #[test]
    fn patterns_find_ids() {
        let pattern = Pattern::parse("item:{id}:v1").unwrap();
        assert_eq!(pattern.id(b"item:42:v1"), Some(&b"42"[..]));
        assert_eq!(pattern.id(b"item:a:b:v1"), Some(&b"a:b"[..]));
        for other in [&b"item::v1"[..], b"item:42", b"item", b"x:42:v1", b"item:v1"] {
            assert_eq!(pattern.id(other), None);
        }
        assert_eq!(&*pattern.key(b"42"), b"item:42:v1");
        let other = |text| Pattern::parse(text).unwrap();
        assert!(pattern.overlaps(&other("it{id}")) && pattern.overlaps(&other("item:x{id}1")));
        assert!(!pattern.overlaps(&other("user:{id}")) && !pattern.overlaps(&other("item:{id}:v2")));
    }
}
