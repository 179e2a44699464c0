//! The libraries of functions, and the functions that they registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Code of every library, by name.
#[derive(Clone, Default)]
pub struct Libraries {
    pub code: BTreeMap<String, Arc<LibraryCode>>,
    /// Function name to library name, with what the function declares.
    pub functions: BTreeMap<String, Registered>,
    /// The registered name for a name in small letters: FCALL finds a function in any case.
    spelled: BTreeMap<String, String>,
}

/// The library of a function, its description and its flags.
pub type Registered = (String, Option<String>, script::ScriptFlags);

pub struct LibraryCode {
    pub text: Box<[u8]>,
    /// CPU time that its loading took.
    pub load_ns: AtomicU64,
}

impl Libraries {
    /// Removes a library. False: there is none of that name. O(all functions).
    pub fn remove(&mut self, library: &str) -> bool {
        let known = self.code.remove(library).is_some();
        if known {
            self.functions.retain(|_, (owner, _, _)| owner != library);
            self.spelled.retain(|_, name| self.functions.contains_key(name));
        }
        known
    }

    /// Adds a function. O(log functions).
    pub fn add(&mut self, function: &str, registered: Registered) {
        self.spelled.insert(function.to_ascii_lowercase(), function.to_owned());
        self.functions.insert(function.to_owned(), registered);
    }

    /// A function by its name in any case, as it was registered. O(log functions).
    pub fn function(&self, name: &str) -> Option<(&String, &Registered)> {
        let registered = self.spelled.get(&name.to_ascii_lowercase());
        self.functions.get_key_value(registered.map_or(name, String::as_str))
    }
}
