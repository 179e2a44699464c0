//! The clients as CLIENT LIST shows them, and the filters that choose some of them.
//!
//! ```text
//! CLIENT LIST | KILL  filter value …  ─► Filter ─► fits(client)?  ─► a line of the list, or a letter to its loop
//! ```
//!
//! Every filter has a form with NOT- in front, except SKIPME, MAXAGE and IDLE. A client has to pass all of
//! them. A filter that is given twice counts once, with its last value; as in Valkey 9.
//!
//! Cost: a filter looks at a client in O(1), or O(log n) for n ids; a line takes some microseconds.

use crate::client::{ClientInfo, flag};
use command::Error;
use command::options::is;
use resp::Args;
use std::fmt::Write as _;
use std::mem::discriminant;
use std::sync::atomic::Ordering::Relaxed;

// ----- lines
// ------------------------------------------------------------------------------------------------

/// Appends a client's line of CLIENT LIST.
pub fn describe(client: &ClientInfo, now_ms: u64, out: &mut Vec<u8>) {
    let seconds = |since: u64| now_ms.saturating_sub(since) / 1000;
    let text = client.text.lock().clone();
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (pending, input) = (client.reply_bytes.load(Relaxed), client.query_bytes.load(Relaxed));
    let (free, multi) = (client.query_free.load(Relaxed), client.multi_bytes.load(Relaxed));
    let mut line = String::with_capacity(400);
    // Writing to a string cannot fail.
    let _ = writeln!(
        line,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} capa={} db={} sub={} psub={} ssub={} multi={} \
         watch={} qbuf={input} qbuf-free={free} argv-mem=0 multi-mem={multi} rbs={pending} rbp={pending} obl={pending} \
         oll=0 omem=0 tot-mem={} events={} cmd={} user={} redir={} resp={} lib-name={} lib-ver={} io-thread={} \
         tot-net-in={} tot-net-out={} tot-cmds={}",
        client.id,
        client.address,
        client.local_address,
        client.fd,
        lossy(&text.name),
        seconds(client.connected_ms),
        seconds(client.last_ms.load(Relaxed)),
        flags(client),
        if knows_redirect(client) { "r" } else { "" },
        client.db.load(Relaxed),
        client.subscriptions.load(Relaxed),
        client.pattern_subscriptions.load(Relaxed),
        client.shard_subscriptions.load(Relaxed),
        client.queued.load(Relaxed),
        client.watching.load(Relaxed),
        input + free + pending + client.other_bytes(),
        if pending > 0 { "rw" } else { "r" },
        client.command(),
        lossy(&text.user),
        client.redirect.load(Relaxed),
        client.resp.load(Relaxed),
        lossy(&text.lib_name),
        lossy(&text.lib_ver),
        client.loop_id.load(Relaxed),
        client.net_in.load(Relaxed),
        client.net_out.load(Relaxed),
        client.commands.load(Relaxed),
    );
    out.extend_from_slice(line.as_bytes());
}

fn knows_redirect(client: &ClientInfo) -> bool {
    client.flags.load(Relaxed) & flag::CAPA_REDIRECT != 0
}

/// The letters of a client's state; `N` alone if there is nothing to tell.
fn flags(client: &ClientInfo) -> String {
    let bits = client.flags.load(Relaxed);
    let letters = [
        (flag::REPLICA, 'S'),
        (flag::PRIMARY, 'M'),
        (flag::MONITOR, 'O'),
        (flag::PUBSUB, 'P'),
        (flag::MULTI, 'x'),
        (flag::BLOCKED, 'b'),
        (flag::WATCH_DIRTY, 'd'),
        (flag::CLOSE_SOON, 'c'),
        (flag::TRACKING, 't'),
        (flag::BROKEN_REDIRECT, 'R'),
        (flag::BROADCAST, 'B'),
    ];
    let mut out: String = letters.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, c)| c).collect();
    if client.unix {
        out.push('U');
    }
    let letters = [(flag::NO_EVICT, 'e'), (flag::NO_TOUCH, 'T'), (flag::IMPORTS, 'I')];
    out.extend(letters.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, c)| c));
    if out.is_empty() {
        out.push('N');
    }
    out
}

// ----- filters
// ----------------------------------------------------------------------------------------------

/// The letters that the filter FLAGS knows.
const FLAG_LETTERS: &[u8] = b"bcdeirtuxABEIMNOPRSTU";

/// Longest name of a filter.
const NAME_MAX: usize = 8;

/// The command whose filters are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    List,
    Kill,
}

/// One property of a client that a filter asks for.
enum Asked {
    Ids(Vec<u64>),
    /// Some: whether it has subscriptions. None: a primary or a replica, which no client is.
    Kind(Kind),
    User(Vec<u8>),
    Address(Vec<u8>),
    LocalAddress(Vec<u8>),
    Ip(Vec<u8>),
    Name(Vec<u8>),
    LibName(Vec<u8>),
    LibVer(Vec<u8>),
    /// All of these letters, each once.
    Flags(Vec<u8>),
    /// True: it can be redirected. False: anything.
    Capa(bool),
    Db(u32),
    AgeFrom(u64),
    IdleFrom(u64),
}

/// The filters of CLIENT LIST and CLIENT KILL.
#[derive(Default)]
pub struct Filter {
    /// The clients asked for by number, in this order; none if any client may pass.
    pub ids: Option<Vec<u64>>,
    /// Each with whether its opposite is asked for.
    asked: Vec<(Asked, bool)>,
    pub skip_me: bool,
}

/// Facts about the server that filters are checked against.
pub struct Known<'a> {
    pub is_user: &'a dyn Fn(&[u8]) -> bool,
    pub databases: usize,
}

impl Filter {
    /// The filter of `CLIENT KILL ip:port`.
    pub fn of_address(address: &[u8]) -> Filter {
        Filter { asked: vec![(Asked::Address(address.to_vec()), false)], ..Filter::default() }
    }

    /// Reads the filters from the third word on. Cost: O(words). Errors: those of Valkey 9.
    pub fn parse(args: Args<'_>, form: Form, known: &Known<'_>) -> Result<Filter, Error> {
        let mut filter = Filter { skip_me: form == Form::Kill, ..Filter::default() };
        let mut i = 2;
        while i < args.len() {
            let Some(value) = args.get(i + 1) else { return Err(Error::Syntax) };
            let (name, not) = match args.at(i).split_at_checked(4) {
                Some((word, name)) if is(word, "not-") => (name, true),
                _ => (args.at(i), false),
            };
            i = match is(name, "id") {
                true => filter.take_ids(args, i + 1, not, form)?,
                false => {
                    filter.take(name, value, not, known)?;
                    i + 2
                }
            };
        }
        Ok(filter)
    }

    /// Reads the numbers behind ID, as many as follow. Returns where they end. A wrong number has the text of
    /// Redis, except behind NOT-ID, which is Valkey's.
    fn take_ids(&mut self, args: Args<'_>, from: usize, not: bool, form: Form) -> Result<usize, Error> {
        let (mut ids, mut end) = (Vec::new(), from);
        while let Some(id) = args.get(end).and_then(stdx::num::parse_i64) {
            if id <= 0 && (not || form == Form::Kill) {
                return Err(Error::new("ERR client-id should be greater than 0"));
            }
            // No client has a negative number.
            ids.push(u64::try_from(id).unwrap_or(0));
            end += 1;
        }
        let goes_on = args.get(end).is_none_or(is_filter);
        match (not, form) {
            (true, _) if ids.is_empty() => return Err(Error::Syntax),
            (false, Form::Kill) if ids.is_empty() => {
                return Err(Error::new("ERR client-id should be greater than 0"));
            }
            (false, Form::List) if ids.is_empty() || !goes_on => {
                return Err(Error::new("ERR Invalid client ID"));
            }
            _ => {}
        }
        if not {
            ids.sort_unstable();
            self.ask(Asked::Ids(ids), true);
        } else {
            self.ids.get_or_insert_default().extend(ids);
        }
        Ok(end)
    }

    /// Takes one filter and its value.
    fn take(&mut self, name: &[u8], value: &[u8], not: bool, known: &Known<'_>) -> Result<(), Error> {
        let shown = || String::from_utf8_lossy(value).into_owned();
        let text = || value.to_vec();
        let mut small = [0; NAME_MAX];
        let Some(small) = small.get_mut(..name.len()) else { return Err(Error::Syntax) };
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        let asked = match &*small {
            b"type" => Asked::Kind(kind(value)?),
            b"user" if (known.is_user)(value) => Asked::User(text()),
            b"user" => return Err(format!("ERR No such user '{}'", shown()).into()),
            b"addr" => Asked::Address(text()),
            b"laddr" => Asked::LocalAddress(text()),
            b"ip" => Asked::Ip(text()),
            b"name" => Asked::Name(text()),
            b"lib-name" => Asked::LibName(text()),
            b"lib-ver" => Asked::LibVer(text()),
            b"flags" => match letters(value) {
                Some(letters) => Asked::Flags(letters),
                None => return Err(unknown("flags", "NOT-FLAGS", not, &shown())),
            },
            b"capa" if value.iter().all(|letter| *letter == b'r') => Asked::Capa(!value.is_empty()),
            b"capa" => return Err(unknown("capa", "NOT-CAPA", not, &shown())),
            b"db" => Asked::Db(database(value, not, known.databases)?),
            b"maxage" if !not => Asked::AgeFrom(seconds("maxage", value)?),
            b"idle" if !not => Asked::IdleFrom(seconds("idle", value)?),
            b"skipme" if !not => {
                self.skip_me = match (is(value, "yes"), is(value, "no")) {
                    (true, _) => true,
                    (_, true) => false,
                    _ => return Err(Error::Syntax),
                };
                return Ok(());
            }
            _ => return Err(Error::Syntax),
        };
        self.ask(asked, not);
        Ok(())
    }

    /// Adds a filter, or replaces its earlier value.
    fn ask(&mut self, asked: Asked, not: bool) {
        let is_same =
            |(old, its_not): &(Asked, bool)| discriminant(old) == discriminant(&asked) && *its_not == not;
        match self.asked.iter_mut().find(|old| is_same(old)) {
            Some(old) => *old = (asked, not),
            None => self.asked.push((asked, not)),
        }
    }

    /// Whether a client passes. `ids` is the caller's to look at, for it knows where those clients are.
    pub fn fits(&self, client: &ClientInfo, me: u64, now_ms: u64) -> bool {
        self.asked.iter().all(|(asked, not)| asked.fits(client, now_ms) != *not)
            && !(self.skip_me && client.id == me)
    }
}

impl Asked {
    fn fits(&self, client: &ClientInfo, now_ms: u64) -> bool {
        let seconds = |since: u64| now_ms.saturating_sub(since) / 1000;
        // An absent name is no name: no value fits it.
        let same = |ours: &[u8], asked: &[u8]| !ours.is_empty() && ours == asked;
        match self {
            Asked::Ids(ids) => ids.binary_search(&client.id).is_ok(),
            Asked::Kind(kind) => *kind == Kind::of(client),
            Asked::User(user) => client.text.lock().user == *user,
            Asked::Address(address) => client.address.as_bytes() == address,
            Asked::LocalAddress(address) => client.local_address.as_bytes() == address,
            Asked::Ip(ip) => host(&client.address).as_bytes() == ip,
            Asked::Name(name) => same(&client.text.lock().name, name),
            Asked::LibName(name) => same(&client.text.lock().lib_name, name),
            Asked::LibVer(version) => same(&client.text.lock().lib_ver, version),
            Asked::Flags(letters) => {
                let its = flags(client);
                letters.iter().all(|letter| its.as_bytes().contains(letter))
            }
            Asked::Capa(redirect) => !redirect || knows_redirect(client),
            Asked::Db(db) => client.db.load(Relaxed) == *db,
            Asked::AgeFrom(age) => seconds(client.connected_ms) >= *age,
            Asked::IdleFrom(idle) => seconds(client.last_ms.load(Relaxed)) >= *idle,
        }
    }
}

/// Whether a word is the name of a filter.
fn is_filter(word: &[u8]) -> bool {
    let names = [
        "id", "type", "user", "addr", "laddr", "ip", "name", "lib-name", "lib-ver", "flags", "capa", "db",
        "maxage", "idle", "skipme",
    ];
    let name = match word.split_at_checked(4) {
        Some((not, name)) if is(not, "not-") => name,
        _ => word,
    };
    names.iter().any(|known| is(name, known))
}

/// The address without its port.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The letters of a word, each once: a client is compared with all of them. None: one of them is no flag.
/// O(bytes)
fn letters(value: &[u8]) -> Option<Vec<u8>> {
    let mut seen = [false; 256];
    value.iter().for_each(|letter| seen[usize::from(*letter)] = true);
    let known = |letter: &u8| seen[usize::from(*letter)];
    let letters: Vec<u8> = FLAG_LETTERS.iter().copied().filter(known).collect();
    (seen.iter().filter(|seen| **seen).count() == letters.len()).then_some(letters)
}

/// The type of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Normal,
    Pubsub,
    Replica,
    Primary,
}

impl Kind {
    fn of(client: &ClientInfo) -> Kind {
        match client.flags.load(Relaxed) {
            flags if flags & flag::PRIMARY != 0 => Kind::Primary,
            flags if flags & flag::REPLICA != 0 => Kind::Replica,
            flags if flags & flag::PUBSUB != 0 => Kind::Pubsub,
            _ => Kind::Normal,
        }
    }
}

fn kind(value: &[u8]) -> Result<Kind, Error> {
    match () {
        () if is(value, "normal") => Ok(Kind::Normal),
        () if is(value, "pubsub") => Ok(Kind::Pubsub),
        () if is(value, "slave") || is(value, "replica") => Ok(Kind::Replica),
        () if is(value, "master") || is(value, "primary") => Ok(Kind::Primary),
        () => Err(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(value)).into()),
    }
}

fn seconds(name: &str, value: &[u8]) -> Result<u64, Error> {
    match stdx::num::parse_i64(value) {
        None => Err(format!("ERR {name} is not an integer or out of range").into()),
        Some(seconds) if seconds <= 0 => Err(format!("ERR {name} should be greater than 0").into()),
        Some(seconds) => Ok(seconds as u64),
    }
}

fn database(value: &[u8], not: bool, databases: usize) -> Result<u32, Error> {
    let name = if not { "NOT-DB" } else { "DB" };
    let number = stdx::num::parse_i64(value);
    let number =
        number.ok_or_else(|| Error::from(format!("ERR {name} is not an integer or out of range")))?;
    let known = usize::try_from(number).is_ok_and(|number| number < databases);
    let last = databases.saturating_sub(1);
    known
        .then_some(number as u32)
        .ok_or_else(|| format!("ERR {name} number should be between 0 and {last}").into())
}

fn unknown(what: &str, name: &str, not: bool, shown: &str) -> Error {
    let filter = if not { format!("{name} filter") } else { "provided filter".into() };
    format!("ERR Unknown {what} found in the {filter}: {shown}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    fn parsed(line: &str, form: Form) -> Result<Filter, Error> {
        let words: Vec<&[u8]> = line.split(' ').map(|word| word.trim_matches('"').as_bytes()).collect();
        let known = Known { is_user: &|name| name == b"default", databases: 16 };
        Filter::parse(OwnedArgs::from_slices(&words).args(), form, &known)
    }

    fn client(id: u64, flags: u32, name: &str) -> ClientInfo {
        let (address, local) = (format!("[::1]:{}", 5000 + id), "[::1]:6379".to_string());
        let client = ClientInfo::new(id, 0, address, local, 0, false, 100_000);
        client.flags.store(flags, Relaxed);
        client.text.lock().name = name.as_bytes().to_vec();
        client
    }

    /// The numbers of the clients that pass a line's filters.
    fn passing(line: &str) -> Vec<u64> {
        let clients = [
            client(1, 0, ""),
            client(2, flag::PUBSUB | flag::TRACKING, "two"),
            client(3, flag::CAPA_REDIRECT | flag::NO_EVICT, "three"),
        ];
        clients[2].db.store(4, Relaxed);
        clients[1].last_ms.store(190_000, Relaxed);
        let filter = parsed(&format!("CLIENT LIST {line}"), Form::List).unwrap();
        let listed = |id: u64| filter.ids.as_ref().is_none_or(|ids| ids.contains(&id));
        clients.iter().filter(|c| listed(c.id) && filter.fits(c, 1, 200_000)).map(|c| c.id).collect()
    }

    #[test]
    fn each_filter_and_its_opposite_choose_the_clients_that_valkey_chooses() {
        for (line, ids, rest) in [
            ("TYPE pubsub", &[2][..], &[1, 3][..]),
            ("TYPE replica", &[], &[1, 2, 3]),
            ("USER default", &[1, 2, 3], &[]),
            ("ADDR [::1]:5002", &[2], &[1, 3]),
            ("LADDR [::1]:6379", &[1, 2, 3], &[]),
            ("IP ::1", &[1, 2, 3], &[]),
            ("NAME two", &[2], &[1, 3]),
            ("NAME \"\"", &[], &[1, 2, 3]),
            ("LIB-NAME x", &[], &[1, 2, 3]),
            ("LIB-VER x", &[], &[1, 2, 3]),
            ("FLAGS Pt", &[2], &[1, 3]),
            ("FLAGS PN", &[], &[1, 2, 3]),
            ("FLAGS NN", &[1], &[2, 3]),
            ("FLAGS \"\"", &[1, 2, 3], &[]),
            ("CAPA r", &[3], &[1, 2]),
            ("CAPA \"\"", &[1, 2, 3], &[]),
            ("DB 4", &[3], &[1, 2]),
            ("ID 1 3 9", &[1, 3], &[2]),
        ] {
            assert_eq!(
                (passing(line), passing(&format!("NOT-{line}"))),
                (ids.to_vec(), rest.to_vec()),
                "{line}"
            );
        }
        // However often a letter is named, it is compared once.
        let named = parsed(&format!("CLIENT LIST FLAGS {}", "NPN".repeat(1_000)), Form::List).unwrap();
        assert!(matches!(&named.asked[..], [(Asked::Flags(letters), false)] if letters == b"NP"));
        assert_eq!(passing("IDLE 11"), [1, 3]);
        assert_eq!(passing("MAXAGE 101"), [0u64; 0]);
        assert_eq!(passing("SKIPME yes"), [2, 3]);
        assert_eq!(passing("ID 1 ID 2"), [1, 2]);
        assert_eq!(passing("NAME zz NAME two NOT-DB 4"), [2]);
    }

    #[test]
    fn wrong_filters_have_the_texts_of_the_servers() {
        for (line, text) in [
            ("LIST TYPE x", "ERR Unknown client type 'x'"),
            ("LIST NOT-USER x", "ERR No such user 'x'"),
            ("LIST FLAGS Nz", "ERR Unknown flags found in the provided filter: Nz"),
            ("LIST NOT-FLAGS z", "ERR Unknown flags found in the NOT-FLAGS filter: z"),
            ("LIST CAPA redirect", "ERR Unknown capa found in the provided filter: redirect"),
            ("LIST NOT-CAPA z", "ERR Unknown capa found in the NOT-CAPA filter: z"),
            ("LIST DB x", "ERR DB is not an integer or out of range"),
            ("LIST DB 16", "ERR DB number should be between 0 and 15"),
            ("LIST NOT-DB -1", "ERR NOT-DB number should be between 0 and 15"),
            ("LIST IDLE x", "ERR idle is not an integer or out of range"),
            ("LIST IDLE 0", "ERR idle should be greater than 0"),
            ("LIST MAXAGE -1", "ERR maxage should be greater than 0"),
            ("LIST ID x", "ERR Invalid client ID"),
            ("LIST ID 1 x", "ERR Invalid client ID"),
            ("LIST NOT-ID 0", "ERR client-id should be greater than 0"),
            ("LIST NOT-ID x", "ERR syntax error"),
            ("LIST NOT-IDLE 1", "ERR syntax error"),
            ("LIST NOT-MAXAGE 1", "ERR syntax error"),
            ("LIST NOT-SKIPME yes", "ERR syntax error"),
            ("LIST SKIPME x", "ERR syntax error"),
            ("LIST NAME", "ERR syntax error"),
            ("LIST NOSUCH x", "ERR syntax error"),
        ] {
            let error =
                parsed(&format!("CLIENT {line}"), Form::List).err().map(|error| error.text().into_owned());
            assert_eq!(error.as_deref(), Some(text), "{line}");
        }
        for (line, text) in [
            ("ID 0", "ERR client-id should be greater than 0"),
            ("ID x", "ERR client-id should be greater than 0"),
            ("ID 1 2 x", "ERR syntax error"),
        ] {
            let error = parsed(&format!("CLIENT KILL {line}"), Form::Kill)
                .err()
                .map(|error| error.text().into_owned());
            assert_eq!(error.as_deref(), Some(text), "{line}");
        }
    }

    #[test]
    fn a_line_tells_what_the_client_can_do() {
        let mut line = Vec::new();
        describe(&client(7, flag::CAPA_REDIRECT | flag::NO_TOUCH, "n"), 103_000, &mut line);
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with(
            "id=7 addr=[::1]:5007 laddr=[::1]:6379 fd=0 name=n age=3 idle=3 flags=T capa=r db=0 "
        ));
        assert!(line.ends_with(" tot-net-in=0 tot-net-out=0 tot-cmds=0\n"), "{line}");
    }
}
