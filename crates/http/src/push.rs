//! A request of the server's own, to a collector of metrics: the bytes, and what a response means.

/// An address of `http://host[:port][/path]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Name or address, without the brackets of an IPv6 one.
    pub host: String,
    pub port: u16,
    path: String,
}

impl Target {
    /// Reads an address. `port` and `path`: those of an address without them. Errors: a sentence.
    pub fn parse(url: &str, port: u16, path: &str) -> Result<Target, &'static str> {
        let rest = url.strip_prefix("http://").ok_or("the address must begin with http://")?;
        let (place, own) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let clean = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@');
        let (host, number) = match place.strip_prefix('[').and_then(|place| place.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => place.split_once(':').map_or((place, None), |(host, number)| (host, Some(number))),
        };
        let port = number.map_or(Ok(port), str::parse).map_err(|_| "the port is no number")?;
        if host.is_empty() || !clean(rest) {
            return Err("the address needs a host, and has no user and no spaces");
        }
        let path = if matches!(own, "" | "/") { path } else { own };
        Ok(Target { host: host.into(), port, path: path.into() })
    }

    /// A POST of JSON, after which the connection ends. O(body)
    pub fn post_json(&self, body: &str) -> Vec<u8> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let Target { port, path, .. } = self;
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: evenkeel\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// The status of a response, from its first bytes. None: it is no response.
pub fn status(response: &[u8]) -> Option<u16> {
    let rest = response.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(2..5).filter(|_| rest[1] == b' ')?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<(String, u16, String), &'static str> {
        Target::parse(url, 4318, "/v1/metrics").map(|target| (target.host, target.port, target.path))
    }

    #[test]
    fn addresses_are_read() {
        let is = |host: &str, port, path: &str| Ok((host.into(), port, path.into()));
        assert_eq!(target("http://collector"), is("collector", 4318, "/v1/metrics"));
        assert_eq!(target("http://collector/"), is("collector", 4318, "/v1/metrics"));
        assert_eq!(target("http://10.0.0.1:80/x/y"), is("10.0.0.1", 80, "/x/y"));
        assert_eq!(target("http://[::1]:4319"), is("::1", 4319, "/v1/metrics"));
        for url in [
            "https://a",
            "a",
            "http://",
            "http://a:x",
            "http://u@a",
            "http://a b",
            "http://:80",
            "http://a\r\nx",
        ] {
            assert!(target(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_request_is_whole_and_a_response_has_a_status() {
        let request = Target::parse("http://[::1]/m", 4318, "").unwrap().post_json("{}");
        let text = String::from_utf8(request).unwrap();
        assert!(text.starts_with("POST /m HTTP/1.1\r\nHost: [::1]:4318\r\n"), "{text}");
        assert!(text.contains("Content-Length: 2\r\n") && text.ends_with("\r\n\r\n{}"), "{text}");
        assert_eq!(status(b"HTTP/1.1 204 No Content\r\n"), Some(204));
        assert_eq!(status(b"HTTP/1.1 20"), None);
        assert_eq!(status(b"+PONG\r\n"), None);
    }
}
