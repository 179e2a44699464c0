//! The lines of a head by which a browser tells where a request comes from, and what it takes.

/// The sender of a request, by its head. See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Browser<'a> {
    /// The first Cookie line.
    pub cookie: Option<&'a [u8]>,
    pub origin: Option<&'a [u8]>,
    /// Sec-Fetch-Site.
    pub fetch_site: Option<&'a [u8]>,
    /// Accept names text/html.
    pub takes_html: bool,
    /// Accept-Encoding names gzip.
    pub takes_gzip: bool,
    /// The body is JSON by its Content-Type.
    pub sends_json: bool,
    /// `Evenkeel-Console: 1`, which no page of another site can add unasked.
    pub is_console: bool,
}

impl<'a> Browser<'a> {
    /// Reads a line, if it is one of these.
    pub(crate) fn read(&mut self, name: &str, value: &'a [u8]) {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        match name.len() {
            6 if is("cookie") => self.cookie = self.cookie.or(Some(value)),
            6 if is("origin") => self.origin = self.origin.or(Some(value)),
            14 if is("sec-fetch-site") => self.fetch_site = self.fetch_site.or(Some(value)),
            6 if is("accept") => self.takes_html |= names(value, b"text/html"),
            15 if is("accept-encoding") => self.takes_gzip |= names(value, b"gzip"),
            12 if is("content-type") => self.sends_json = kind(value) == b"application/json",
            16 if is("evenkeel-console") => self.is_console = value == b"1",
            _ => {}
        }
    }

    /// The value of a cookie. O(line).
    pub fn cookie_of(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.cookie?.split(|byte| *byte == b';').map(<[u8]>::trim_ascii).find_map(|pair| {
            let (found, value) = pair.split_at(memchr::memchr(b'=', pair)?);
            (found == name).then(|| &value[1..])
        })
    }

    /// Whether a page of another origin may have sent the request, by what its browser says. `host`: the Host
    /// header. A program that says nothing is no browser.
    pub fn is_foreign(&self, host: Option<&[u8]>) -> bool {
        let site = self.fetch_site.is_some_and(|site| site != b"same-origin" && site != b"none");
        let origin = self.origin.is_some_and(|origin| {
            let named =
                [&b"http://"[..], b"https://"].into_iter().find_map(|begin| origin.strip_prefix(begin));
            !matches!((named, host), (Some(named), Some(host)) if named.eq_ignore_ascii_case(host))
        });
        site || origin
    }
}

/// A media type without its parameters.
fn kind(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Whether a list names this, and not with the weight 0.
fn names(list: &[u8], wanted: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|word| {
        let refused = word.split(|byte| *byte == b';').skip(1).any(|part| {
            let weight = part.trim_ascii().strip_prefix(b"q=").unwrap_or(b"1");
            !weight.iter().any(|byte| matches!(byte, b'1'..=b'9'))
        });
        kind(word).eq_ignore_ascii_case(wanted) && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let browser = Browser { cookie: Some(b"a=1; evenkeel=x=y;evenkee=2; flag"), ..Browser::default() };
        assert_eq!(browser.cookie_of(b"evenkeel"), Some(&b"x=y"[..]));
        assert_eq!(browser.cookie_of(b"evenkee"), Some(&b"2"[..]));
        assert_eq!(browser.cookie_of(b"flag"), None);
        assert_eq!(browser.cookie_of(b"keel"), None);
    }

    #[test]
    fn lists_name_what_is_taken() {
        assert!(names(b"text/html,application/xhtml+xml;q=0.9", b"text/html"));
        assert!(names(b"br, GZIP;q=0.5", b"gzip"));
        for not in [&b"gzip;q=0"[..], b"gzip; q=0.000", b"gzipped", b"*/*", b""] {
            assert!(!names(not, b"gzip"), "{}", String::from_utf8_lossy(not));
        }
    }

    #[test]
    fn pages_of_others_are_known_by_their_origin() {
        let host = Some(&b"cache:8379"[..]);
        let from = |origin: &'static str| Browser { origin: Some(origin.as_bytes()), ..Browser::default() };
        assert!(!Browser::default().is_foreign(host));
        assert!(!from("http://cache:8379").is_foreign(host) && !from("https://CACHE:8379").is_foreign(host));
        for origin in
            ["null", "http://evil.example", "http://cache", "http://cache:8379.evil.example", "cache:8379"]
        {
            assert!(from(origin).is_foreign(host), "{origin}");
        }
        assert!(from("http://cache").is_foreign(None));
        for (site, foreign) in
            [("same-origin", false), ("none", false), ("same-site", true), ("cross-site", true)]
        {
            let browser = Browser { fetch_site: Some(site.as_bytes()), ..Browser::default() };
            assert_eq!(browser.is_foreign(host), foreign, "{site}");
        }
    }
}
