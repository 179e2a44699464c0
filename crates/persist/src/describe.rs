//! A report of a file, without loading it.
//!
//! Memory is bounded whatever the file says: [`LARGEST`] keys, [`PREFIXES_MAX`] prefixes, [`DATABASES_MAX`]
//! databases, a window. Cost: O(bytes), about 2 ns each.

use rdb::file::{Damage, EntryHead, FileReader, Format, Input, LeftOut, Part, Problem, Shown, Summed};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, ErrorKind, Read};

/// Values that are named for their size.
const LARGEST: usize = 10;
/// Prefixes that are counted apart. If there are more, the smaller half is put together with the rest.
const PREFIXES_MAX: usize = 4096;
/// Prefixes that are shown.
const PREFIXES_SHOWN: usize = 20;
/// Bytes of a prefix, of a key and of a fact that are kept.
const PREFIX_BYTES: usize = 64;
const KEY_BYTES: usize = 200;
const AUX_BYTES: usize = 200;
/// Facts that are kept, and databases that are counted apart.
const AUX_MAX: usize = 100;
const DATABASES_MAX: usize = 1024;

/// Keys, and the bytes they take in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub keys: u64,
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.keys += 1;
        self.bytes += bytes;
    }

    fn join(&mut self, other: Tally) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }
}

/// One database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Database {
    pub all: Tally,
    pub expiring: u64,
    /// Keys by their kind, such as "hashes".
    pub kinds: BTreeMap<&'static str, Tally>,
}

/// A large value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Large {
    pub bytes: u64,
    pub db: u64,
    /// The beginning of the key's name.
    pub key: Box<[u8]>,
    pub kind: &'static str,
}

/// The checksum of a file against its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// The end was not reached.
    Unknown,
    /// The file has none.
    None,
    Fits,
    Wrong,
}

/// The contents of a file in figures.
#[derive(Debug)]
pub struct Description {
    pub format: Format,
    /// Facts, shortened.
    pub aux: Vec<(String, String)>,
    /// Libraries of functions, and their bytes.
    pub functions: Tally,
    /// Modules that wrote something beside the keys.
    pub modules: Vec<String>,
    /// Parts that no load takes.
    pub left_out: LeftOut,
    pub databases: BTreeMap<u64, Database>,
    /// Databases that are not counted apart.
    pub other_databases: Tally,
    /// The largest values, in descending order.
    pub largest: Vec<Large>,
    /// Keys by the part of their names up to the first colon, in descending order. `None`: names without a
    /// colon.
    pub prefixes: Vec<(Option<Box<[u8]>>, Tally)>,
    pub other_prefixes: Tally,
    pub expiring: u64,
    /// Keys that had expired at the time that was given.
    pub expired: u64,
    /// The first and the last expiry.
    pub soonest_ms: Option<u64>,
    pub latest_ms: Option<u64>,
    pub sum: Sum,
    /// Bytes that were understood.
    pub bytes: u64,
    pub damage: Option<Damage<io::Error>>,
}

/// Reads a file and reports its contents, damage included. `now_ms` tells which keys have expired. See the
/// module for cost and memory.
///
/// Errors: it is no file of a known version.
pub fn describe(reader: impl Read, now_ms: u64) -> Result<Description, Damage<io::Error>> {
    let mut file = FileReader::new(Summed::new(Bytes(reader)), false)?;
    let mut about = Describing::new(file.format(), now_ms);
    let damage = loop {
        match file.next_part() {
            Err(damage) => break Some(damage),
            Ok(Part::End { sum }) => {
                let computed = file.input().sum();
                about.found.sum = match sum {
                    None => Sum::None,
                    Some(sum) if sum == computed => Sum::Fits,
                    Some(_) => Sum::Wrong,
                };
                let offset = file.offset();
                let wrong = |stored| Problem::Sum { stored, computed };
                let wrong = sum.filter(|sum| *sum != computed).map(wrong);
                break wrong.map(|what| Damage { offset, from: offset, db: None, key: None, what });
            }
            Ok(part) => about.part(&part),
        }
    };
    let mut found = about.finish();
    (found.bytes, found.damage, found.left_out) = (file.offset(), damage, file.left_out());
    Ok(found)
}

/// The bytes of a reader.
struct Bytes<R>(R);

impl<R: Read> Input for Bytes<R> {
    type Error = io::Error;

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

struct Describing {
    found: Description,
    prefixes: HashMap<Option<Box<[u8]>>, Tally>,
    now_ms: u64,
}

impl Describing {
    fn new(format: Format, now_ms: u64) -> Describing {
        let found = Description {
            format,
            aux: Vec::new(),
            functions: Tally::default(),
            modules: Vec::new(),
            left_out: LeftOut::default(),
            databases: BTreeMap::new(),
            other_databases: Tally::default(),
            largest: Vec::new(),
            prefixes: Vec::new(),
            other_prefixes: Tally::default(),
            expiring: 0,
            expired: 0,
            soonest_ms: None,
            latest_ms: None,
            sum: Sum::Unknown,
            bytes: 0,
            damage: None,
        };
        Describing { found, prefixes: HashMap::new(), now_ms }
    }

    fn part(&mut self, part: &Part<'_>) {
        let found = &mut self.found;
        match part {
            Part::Aux { name, value } if found.aux.len() < AUX_MAX => {
                let short = |text: &[u8]| text[..text.len().min(AUX_BYTES)].escape_ascii().to_string();
                found.aux.push((short(name), short(value)));
            }
            Part::Function(code) => found.functions.add(code.len() as u64),
            Part::ModuleAux { name, version } if found.modules.len() < AUX_MAX => {
                found.modules.push(format!("{} (version {version})", name.escape_ascii()));
            }
            Part::Entry(head) => self.entry(head),
            _ => {}
        }
    }

    fn entry(&mut self, head: &EntryHead<'_>) {
        let bytes = head.to - head.from;
        self.expiry(head.expire_ms);
        self.prefix(head.key, bytes);
        self.large(head, bytes);
        let databases = &mut self.found.databases;
        if databases.len() >= DATABASES_MAX && !databases.contains_key(&head.db) {
            return self.found.other_databases.add(bytes);
        }
        let database = databases.entry(head.db).or_default();
        database.all.add(bytes);
        database.expiring += u64::from(head.expire_ms.is_some());
        database.kinds.entry(head.kind_name()).or_default().add(bytes);
    }

    fn expiry(&mut self, expire_ms: Option<u64>) {
        let Some(at) = expire_ms else { return };
        let found = &mut self.found;
        found.expiring += 1;
        found.expired += u64::from(at <= self.now_ms);
        found.soonest_ms = Some(found.soonest_ms.map_or(at, |soonest| soonest.min(at)));
        found.latest_ms = Some(found.latest_ms.map_or(at, |latest| latest.max(at)));
    }

    fn prefix(&mut self, key: &[u8], bytes: u64) {
        let colon = key.iter().take(PREFIX_BYTES).position(|byte| *byte == b':');
        let prefix = colon.map(|at| Box::from(&key[..=at]));
        if self.prefixes.len() >= PREFIXES_MAX && !self.prefixes.contains_key(&prefix) {
            self.thin_out();
        }
        self.prefixes.entry(prefix).or_default().add(bytes);
    }

    /// Puts the smaller half of the prefixes together with the rest.
    fn thin_out(&mut self) {
        let mut sizes: Vec<u64> = self.prefixes.values().map(|tally| tally.bytes).collect();
        let half = sizes.len() / 2;
        let (_, median, _) = sizes.select_nth_unstable(half);
        let (median, other) = (*median, &mut self.found.other_prefixes);
        let mut kept = 0;
        self.prefixes.retain(|_, tally| {
            let keeps = tally.bytes >= median && kept < half;
            kept += usize::from(keeps);
            if !keeps {
                other.join(*tally);
            }
            keeps
        });
    }

    fn large(&mut self, head: &EntryHead<'_>, bytes: u64) {
        let largest = &mut self.found.largest;
        if largest.len() == LARGEST && largest.last().is_some_and(|last| last.bytes >= bytes) {
            return;
        }
        let key = head.key[..head.key.len().min(KEY_BYTES)].into();
        let at = largest.partition_point(|other| other.bytes >= bytes);
        largest.insert(at, Large { bytes, db: head.db, key, kind: head.kind_name() });
        largest.truncate(LARGEST);
    }

    fn finish(self) -> Description {
        let mut found = self.found;
        let mut prefixes: Vec<_> = self.prefixes.into_iter().collect();
        prefixes.sort_unstable_by(|(a, one), (b, other)| other.bytes.cmp(&one.bytes).then_with(|| a.cmp(b)));
        let shown = prefixes.len().min(PREFIXES_SHOWN);
        prefixes.drain(shown..).for_each(|(_, tally)| found.other_prefixes.join(tally));
        found.prefixes = prefixes;
        found
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "format: {}", self.format)?;
        self.aux.iter().try_for_each(|(name, value)| writeln!(f, "aux {name}: {value}"))?;
        writeln!(f, "functions: {} libraries, {} bytes", self.functions.keys, self.functions.bytes)?;
        self.modules.iter().try_for_each(|module| writeln!(f, "data of module {module}"))?;
        let LeftOut { keys_with_metadata } = self.left_out;
        if !self.left_out.is_empty() {
            writeln!(f, "left out by a load: metadata of modules of {keys_with_metadata} keys")?;
        }
        for (db, database) in &self.databases {
            let Tally { keys, bytes } = database.all;
            writeln!(f, "database {db}: {keys} keys, {} expire, {bytes} bytes", database.expiring)?;
            for (kind, tally) in &database.kinds {
                writeln!(f, "  {kind}: {}, {} bytes", tally.keys, tally.bytes)?;
            }
        }
        if self.other_databases.keys > 0 {
            writeln!(f, "other databases: {} keys", self.other_databases.keys)?;
        }
        for large in &self.largest {
            let key = Shown(&large.key);
            writeln!(
                f,
                "large: {key} in database {}, one of the {}, {} bytes",
                large.db, large.kind, large.bytes
            )?;
        }
        for (prefix, tally) in &self.prefixes {
            match prefix {
                Some(prefix) => write!(f, "prefix {}", Shown(prefix))?,
                None => f.write_str("no prefix")?,
            }
            writeln!(f, ": {} keys, {} bytes", tally.keys, tally.bytes)?;
        }
        if self.other_prefixes.keys > 0 {
            let Tally { keys, bytes } = self.other_prefixes;
            writeln!(f, "other prefixes: {keys} keys, {bytes} bytes")?;
        }
        if let (Some(soonest), Some(latest)) = (self.soonest_ms, self.latest_ms) {
            let (expiring, expired) = (self.expiring, self.expired);
            writeln!(
                f,
                "expiry: {expiring} keys, {expired} have expired, from {soonest} to {latest} ms since 1970"
            )?;
        }
        let sum = match self.sum {
            Sum::Unknown => "not reached",
            Sum::None => "none",
            Sum::Fits => "fits",
            Sum::Wrong => "wrong",
        };
        writeln!(f, "checksum: {sum}")?;
        match &self.damage {
            Some(damage) => writeln!(f, "damaged: {damage}"),
            None => writeln!(f, "sound: {} bytes", self.bytes),
        }
    }
}
