//! Lines of a configuration. What is split is quoted so that it splits the same; a value that a directive takes
//! is shown so that it is taken again, from CONFIG SET and from a line of a file. The files are taken by
//! themselves: the crate around them has the drivers of databases.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/config/src/kind.rs"]
mod kind;
#[allow(dead_code)]
#[path = "../../crates/config/src/live.rs"]
mod live;
#[allow(dead_code)]
#[path = "../../crates/config/src/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../../crates/config/src/rows.rs"]
mod rows;
#[allow(dead_code)]
#[path = "../../crates/config/src/table.rs"]
mod table;
#[allow(dead_code)]
#[path = "../../crates/config/src/words.rs"]
mod words;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for line in data.split(|byte| *byte == b'\n') {
        let Some(split) = words::split(line) else { continue };
        let quoted: Vec<Vec<u8>> = split.iter().map(|word| words::quote_if_needed(word)).collect();
        assert_eq!(words::split(&quoted.join(&b' ')).as_ref(), Some(&split));
        let Some((name, args)) = split.split_first() else { continue };
        let _ = table::nearest(name);
        let Some(at) = table::find(name) else { continue };
        let row = &table::table()[at];
        let Ok((_, shown)) = row.accept(args, row.default.as_bytes()) else { continue };
        let (_, again) = row.accept(std::slice::from_ref(&shown), &shown).expect("a shown value is taken");
        assert_eq!(again, shown, "{}", row.name);
        let mut now = row.default.as_bytes().to_vec();
        for (nr, line) in row.kind.lines(&shown, row.default.as_bytes()).into_iter().enumerate() {
            let args = words::split(&line).expect("a written line is split");
            let accepted = if nr == 0 { row.accept(&args, &now) } else { row.accept_further(&args, &now) };
            (_, now) = accepted.expect("a written line is taken");
        }
        assert_eq!(now, shown, "{}", row.name);
    }
});
