//! Per Lua state: settings that a script may change, and buffers that are reused.
//!
//! Every run starts with the same settings ([`Session::begin`]): changes by `redis.setresp`,
//! `math.randomseed` or `cjson.encode_*` end with the run. Redis keeps the cjson settings. Here several Lua
//! states exist, and a script must not depend on which one runs it.

use std::cell::Cell;

use crate::library::Registration;
use crate::lua::{Ref, Reused};
use crate::random::Random;

#[derive(Default)]
pub(crate) struct Session {
    /// Whether `redis.setresp(3)` is in force.
    pub(crate) resp3: Cell<bool>,
    /// The generator without a seed. It continues from run to run.
    random: Cell<Random>,
    /// The generator seeded by `math.randomseed`, for the rest of the run.
    pub(crate) seeded: Cell<Option<Random>>,
    pub(crate) json: Cell<JsonSettings>,
    /// The texts of field names, interned once.
    pub(crate) names: Cell<Option<Names>>,
    /// Functions registered by the library being loaded; `None` outside of a load.
    pub(crate) registering: Cell<Option<Vec<Registration>>>,
    /// The reply of the last command, and the text of the numbers among its arguments.
    pub(crate) reply: Reused,
    pub(crate) numbers: Reused,
    /// The output of the running gsubs, outer ones first.
    pub(crate) pattern: Reused,
    /// The output of cjson, cmsgpack and struct.
    pub(crate) buffer: Reused,
}

impl Session {
    pub(crate) fn begin(&self) {
        self.resp3.set(false);
        self.seeded.set(None);
        self.json.set(JsonSettings::default());
    }

    /// Frees buffers that are larger than `bytes`.
    pub(crate) fn trim(&self, bytes: usize) {
        [&self.reply, &self.numbers, &self.pattern, &self.buffer]
            .into_iter()
            .for_each(|place| place.trim(bytes));
    }

    /// The next random number, in [0, 1).
    pub(crate) fn next_random(&self) -> f64 {
        match self.seeded.get() {
            Some(mut seeded) => {
                let unit = seeded.unit();
                self.seeded.set(Some(seeded));
                unit
            }
            None => {
                let mut random = self.random.get();
                let unit = random.unit();
                self.random.set(random);
                unit
            }
        }
    }

    pub(crate) fn names(&self) -> Names {
        self.names.get().expect("set up with the state")
    }
}

/// Strings that are pushed very often. The registry keeps them: pushing one costs a fifth of interning it.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) err: Ref,
    pub(crate) ok: Ref,
    pub(crate) double: Ref,
    pub(crate) map: Ref,
    pub(crate) set: Ref,
    pub(crate) big_number: Ref,
    pub(crate) verbatim_string: Ref,
    /// The metatable that marks a decoded JSON array.
    pub(crate) json_array: Ref,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InvalidNumbers {
    Refuse,
    Allow,
    Null,
}

#[derive(Clone, Copy)]
pub(crate) struct JsonSettings {
    pub(crate) sparse_convert: bool,
    pub(crate) sparse_ratio: i32,
    pub(crate) sparse_safe: i32,
    pub(crate) encode_max_depth: i32,
    pub(crate) decode_max_depth: i32,
    pub(crate) precision: i32,
    pub(crate) keep_buffer: bool,
    pub(crate) encode_invalid: InvalidNumbers,
    pub(crate) decode_invalid: InvalidNumbers,
    pub(crate) decode_array_mt: bool,
}

impl Default for JsonSettings {
    fn default() -> Self {
        JsonSettings {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_max_depth: 1000,
            decode_max_depth: 1000,
            precision: 14,
            keep_buffer: true,
            encode_invalid: InvalidNumbers::Refuse,
            decode_invalid: InvalidNumbers::Allow,
            decode_array_mt: false,
        }
    }
}
