//! The files of the console, as a browser gets them: what `make console` made of `console/src`, and each of
//! them compressed.
#![forbid(unsafe_code)]

/// A file, as it is and compressed.
pub struct File {
    /// Its path behind `/`. The page itself has none.
    pub path: &'static str,
    pub content_type: &'static str,
    pub bytes: &'static [u8],
    pub gzip: &'static [u8],
}

macro_rules! file {
    ($path:literal, $name:literal, $content_type:literal) => {
        File {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../files/", $name)),
            gzip: include_bytes!(concat!("../files/", $name, ".gz")),
        }
    };
}

/// All files; the page is the first.
pub static FILES: [File; 5] = [
    file!("", "index.html", "text/html; charset=utf-8"),
    file!("console/app.js", "app.js", "text/javascript; charset=utf-8"),
    file!("console/app.css", "app.css", "text/css; charset=utf-8"),
    file!("console/icon.svg", "icon.svg", "image/svg+xml"),
    file!("console/licences.txt", "licences.txt", "text/plain; charset=utf-8"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of all files together, compressed.
    const BUDGET: usize = 60 * 1024;

    #[test]
    fn the_console_is_small() {
        let total: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(total <= BUDGET, "{total} bytes");
        assert!(FILES.iter().all(|file| file.gzip.starts_with(&[0x1f, 0x8b]) && !file.bytes.is_empty()));
    }

    #[test]
    fn the_page_names_no_other_server_and_holds_no_script() {
        let page = std::str::from_utf8(FILES[0].bytes).expect("text");
        assert!(!page.contains("//") && !page.contains("style=") && page.matches("<script").count() == 1);
        assert!(page.contains("<script type=\"module\" src=\"console/app.js\"></script>"));
        for file in &FILES[1..4] {
            let text = std::str::from_utf8(file.bytes).expect("text").replace("http://www.w3.org/", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{}", file.path);
        }
    }
}
