//! The parts of a file, one after the other.

use super::skip;
use super::window::{Input, Window};
use super::{
    AUX, Damage, EOF, EXPIRETIME, EXPIRETIME_MS, FREQ, Format, IDLE, KEY_METADATA, MODULE_AUX, Problem,
    RESIZEDB, SELECTDB, SLOT_INFO,
};
use crate::{OPCODE_FUNCTION, OPCODE_FUNCTION_CANDIDATE, module, types};

/// A part of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A fact about the file.
    Aux { name: &'a [u8], value: &'a [u8] },
    /// The next keys are of this database.
    Select(u64),
    /// How many keys it has, about, and how many of them expire.
    Resize { keys: u64, expires: u64 },
    /// The code of a library of functions.
    Function(&'a [u8]),
    /// Data of a module beside the keys; it was passed over.
    ModuleAux { name: [u8; 9], version: u16 },
    /// Counts of a slot of a cluster; nothing follows from them.
    SlotInfo { slot: u64, keys: u64, expires: u64 },
    /// A key, and its object if those are kept.
    Entry(EntryHead<'a>),
    /// All was read. The sum is None if the file has none: it is old, or was written without.
    End { sum: Option<u64> },
}

/// A key and what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead<'a> {
    pub key: &'a [u8],
    pub db: u64,
    /// When it expires (milliseconds since 1970); what lies before 1970 has expired at 0.
    pub expire_ms: Option<u64>,
    /// For how many seconds it was not used, or how often it is, if the file says so.
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
    /// The type of the object.
    pub kind: u8,
    /// Where the entry begins in the file, and where it ends.
    pub from: u64,
    pub to: u64,
    /// Its type and contents. Empty if objects are not kept.
    pub object: &'a [u8],
}

impl EntryHead<'_> {
    /// The kind of the value, in the plural.
    pub fn kind_name(&self) -> &'static str {
        types::name(self.kind)
    }
}

/// Parts of entries that are passed over, since nothing here could keep them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Keys of which modules knew more.
    pub keys_with_metadata: u64,
}

impl LeftOut {
    pub fn is_empty(self) -> bool {
        self == LeftOut::default()
    }
}

/// The facts that precede a key.
#[derive(Clone, Copy, Default)]
struct Said {
    expire_ms: Option<u64>,
    idle_s: Option<u64>,
    freq: Option<u8>,
}

/// Reads the parts of a file. See [`super`].
pub struct FileReader<I: Input> {
    window: Window<I>,
    format: Format,
    db: u64,
    /// Objects are kept.
    keeps: bool,
    name: Vec<u8>,
    value: Vec<u8>,
    /// Where the part in hand begins, where its opcode stands, and whether its key was read.
    from: u64,
    code_at: u64,
    in_entry: bool,
    ended: bool,
    left_out: LeftOut,
}

impl<I: Input> FileReader<I> {
    /// Reads the header. With `keeps` the bytes of each object are kept until the next part is asked for, but
    /// those of streams.
    ///
    /// Errors: it is no such file, or of a version that is not known.
    pub fn new(input: I, keeps: bool) -> Result<FileReader<I>, Damage<I::Error>> {
        let mut window = Window::new(input);
        let damage = |what| Damage { offset: 0, from: 0, db: None, key: None, what };
        let magic = window.array().map_err(|what| match what {
            Problem::Truncated => damage(Problem::NoFile),
            what => damage(what),
        })?;
        let format = Format::of(&magic).map_err(damage)?;
        Ok(FileReader {
            window,
            format,
            db: 0,
            keeps,
            name: Vec::new(),
            value: Vec::new(),
            from: 0,
            code_at: 0,
            in_entry: false,
            ended: false,
            left_out: LeftOut::default(),
        })
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    /// The parts that were passed over so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    pub fn input(&self) -> &I {
        &self.window.input
    }

    /// The object of the last entry, which is the caller's from now on.
    pub fn take_object(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.window.kept)
    }

    /// The next part. After [`Part::End`] it is given again; after an error nothing more can be read.
    ///
    /// Cost: O(bytes of the part). Errors: the file is damaged, or the input failed.
    pub fn next_part(&mut self) -> Result<Part<'_>, Damage<I::Error>> {
        self.in_entry = false;
        self.window.kept.clear();
        match self.read() {
            Ok(found) => Ok(self.part(found)),
            Err(what) => {
                self.window.keep(false);
                let key = self.in_entry.then(|| self.name.as_slice().into());
                let offset = match what {
                    Problem::Opcode(_) | Problem::Old(_) => self.code_at,
                    _ => self.window.offset(),
                };
                Err(Damage { offset, from: self.from, db: Some(self.db), key, what })
            }
        }
    }

    fn part(&self, found: Found) -> Part<'_> {
        match found {
            Found::Aux => Part::Aux { name: &self.name, value: &self.value },
            Found::Select => Part::Select(self.db),
            Found::Resize { keys, expires } => Part::Resize { keys, expires },
            Found::Function => Part::Function(&self.value),
            Found::ModuleAux { name, version } => Part::ModuleAux { name, version },
            Found::SlotInfo { slot, keys, expires } => Part::SlotInfo { slot, keys, expires },
            Found::Entry { said, kind } => Part::Entry(EntryHead {
                key: &self.name,
                db: self.db,
                expire_ms: said.expire_ms,
                idle_s: said.idle_s,
                freq: said.freq,
                kind,
                from: self.from,
                to: self.window.offset(),
                object: &self.window.kept,
            }),
            Found::End { sum } => Part::End { sum },
        }
    }

    fn read(&mut self) -> Result<Found, Problem<I::Error>> {
        if self.ended {
            return Ok(Found::End { sum: None });
        }
        let mut said = Said::default();
        self.from = self.window.offset();
        loop {
            self.code_at = self.window.offset();
            let code = self.window.byte()?;
            match code {
                EXPIRETIME_MS => {
                    said.expire_ms = expiry(i64::from_le_bytes(self.window.array()?));
                }
                EXPIRETIME => {
                    let seconds = i64::from(i32::from_le_bytes(self.window.array()?));
                    said.expire_ms = if seconds == -1 { None } else { expiry(seconds * 1000) };
                }
                FREQ => said.freq = Some(self.window.byte()?),
                IDLE => said.idle_s = Some(self.window.length()?),
                KEY_METADATA if self.has_metadata() => {
                    skip::metadata(&mut self.window)?;
                    self.left_out.keys_with_metadata += 1;
                }
                code => return self.read_part(code, said),
            }
        }
    }

    fn has_metadata(&self) -> bool {
        module::has_metadata(self.format.version)
    }

    fn read_part(&mut self, code: u8, said: Said) -> Result<Found, Problem<I::Error>> {
        Ok(match code {
            AUX => {
                self.window.string(&mut self.name)?;
                self.window.string(&mut self.value)?;
                Found::Aux
            }
            SELECTDB => {
                self.db = self.window.length()?;
                Found::Select
            }
            RESIZEDB => Found::Resize { keys: self.window.length()?, expires: self.window.length()? },
            OPCODE_FUNCTION => {
                self.window.string(&mut self.value)?;
                Found::Function
            }
            OPCODE_FUNCTION_CANDIDATE => {
                return Err(Problem::Old("libraries of functions from release candidates of Redis 7.0"));
            }
            MODULE_AUX => {
                let (name, version) = module::name_and_version(self.window.length()?);
                skip::pieces(&mut self.window)?;
                Found::ModuleAux { name, version }
            }
            SLOT_INFO => Found::SlotInfo {
                slot: self.window.length()?,
                keys: self.window.length()?,
                expires: self.window.length()?,
            },
            EOF => self.read_end()?,
            kind => self.read_entry(kind, said)?,
        })
    }

    fn read_entry(&mut self, kind: u8, said: Said) -> Result<Found, Problem<I::Error>> {
        if !skip::is_known(kind, self.format.dialect) {
            return Err(Problem::Opcode(kind));
        }
        self.window.string(&mut self.name)?;
        self.in_entry = true;
        if self.keeps {
            self.window.keep(true);
            self.window.kept.push(kind);
        }
        let skipped = skip::object(&mut self.window, kind, self.format.dialect);
        self.window.keep(false);
        skipped?;
        Ok(Found::Entry { said, kind })
    }

    fn read_end(&mut self) -> Result<Found, Problem<I::Error>> {
        self.window.settle_passed();
        let stored = match self.format.has_sum() {
            true => u64::from_le_bytes(self.window.array()?),
            false => 0,
        };
        self.ended = true;
        Ok(Found::End { sum: Some(stored).filter(|sum| *sum != 0) })
    }
}

/// A part without what is borrowed.
enum Found {
    Aux,
    Select,
    Resize { keys: u64, expires: u64 },
    Function,
    ModuleAux { name: [u8; 9], version: u16 },
    SlotInfo { slot: u64, keys: u64, expires: u64 },
    Entry { said: Said, kind: u8 },
    End { sum: Option<u64> },
}

/// A time as it is written; -1 stands for none.
fn expiry(ms: i64) -> Option<u64> {
    (ms != -1).then(|| u64::try_from(ms).unwrap_or(0))
}
