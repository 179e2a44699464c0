//! The words of a source. Its file is taken by itself: the crate around it has the drivers of three databases.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/source/src/spec.rs"]
mod spec;
#[allow(dead_code)]
#[path = "../../crates/source/src/spelling.rs"]
mod spelling;

/// What the files expect of their crate.
pub type Id = Box<[u8]>;
use spec::IdType;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(read) = spec::Spec::parse(text.split(' ')) {
        let words = read.words();
        let again = spec::Spec::parse(words.iter().map(String::as_str));
        assert_eq!(again.as_ref(), Ok(&read));
        let _ = read.shown_url();
    }
});
