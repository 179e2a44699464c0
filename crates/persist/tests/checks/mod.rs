//! Laws that hold for any bytes, for the hostile tests and for fuzzing.

use persist::{Manifest, check_file};

/// Files of commands: what is whole of a file is whole without the rest, too.
pub fn log_file(data: &[u8]) {
    let read = |data: &[u8]| check_file(&data.to_vec(), data.len() as u64, 0).expect("memory is read");
    let about = read(data);
    let end = usize::try_from(about.ends_at).expect("it is in the file");
    assert!(end <= data.len());
    assert!(!(about.is_torn && about.damage.is_some()));
    assert!(about.damage.is_none_or(|(offset, _)| offset <= data.len() as u64));
    let whole = read(&data[..end]);
    assert!(!whole.is_torn && whole.damage.is_none(), "{about:?} {whole:?}");
    assert_eq!(
        (whole.commands, whole.transactions, whole.batches, whole.last_lsn),
        (about.commands, about.transactions, about.batches, about.last_lsn)
    );
    assert!(about.commands * 6 <= data.len() as u64);
}

/// Manifests: what is taken is written so that it reads the same, and names only files of the directory.
pub fn log_manifest(data: &[u8]) {
    let Ok(manifest) = Manifest::parse(data) else { return };
    assert_eq!(Manifest::parse(&manifest.text()).as_ref(), Ok(&manifest));
    for entry in &manifest.entries {
        assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0) && entry.name != b"..");
    }
}
