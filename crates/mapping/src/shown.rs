//! Urls of databases as people may see them: without passwords, keys and tokens.
//!
//! Only what is known to be harmless is shown: the scheme, the user, hosts, the path, and
//! the parameters of [`HARMLESS`] with plain values. All else is `***`, and so is a url that can be read in
//! two ways. A password that is not escaped may have any character, so that it reaches to the last `@`.

/// Parameters whose values tell nothing, in small letters.
const HARMLESS: &[&str] = &[
    "application_name",
    "appname",
    "authmechanism",
    "authsource",
    "channel_binding",
    "compressors",
    "connect_timeout",
    "connecttimeoutms",
    "dbname",
    "directconnection",
    "heartbeatfrequencyms",
    "host",
    "hostaddr",
    "journal",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "loadbalanced",
    "localthresholdms",
    "maxidletimems",
    "maxpoolsize",
    "maxstalenessseconds",
    "minpoolsize",
    "port",
    "readconcernlevel",
    "readpreference",
    "replicaset",
    "retryreads",
    "retrywrites",
    "serverselectiontimeoutms",
    "sockettimeoutms",
    "srvmaxhosts",
    "srvservicename",
    "ssl",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "tls",
    "tlsallowinvalidcertificates",
    "tlsallowinvalidhostnames",
    "tlscafile",
    "tlscertificatekeyfile",
    "tlsinsecure",
    "user",
    "w",
    "waitqueuetimeoutms",
    "wtimeoutms",
];

/// Parameters whose names tell nothing, though their values do, in small letters.
const SECRET: &[&str] =
    &["authmechanismproperties", "options", "password", "sslpassword", "tlscertificatekeyfilepassword"];

const HIDDEN: &str = "***";

/// A url as it may be shown. Cost: O(url).
pub fn url(url: &str) -> String {
    if let Some(file) = url.strip_prefix("sqlite:").filter(|rest| is_file(rest)) {
        let (path, rest) = file.split_once('?').map_or((file, ""), |(path, _)| (path, "?***"));
        return format!("sqlite:{path}{rest}");
    }
    let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_plain(scheme, b"+")) else {
        return HIDDEN.into();
    };
    match rest.strip_prefix("//") {
        Some(rest) => format!("{scheme}://{}", place(rest)),
        None => format!("{scheme}:{HIDDEN}"),
    }
}

/// A text with words such as a directive's line, as far as it has no url: that is left out from its `//` on.
pub fn line(text: &str) -> String {
    text.split_once("://").map_or_else(|| text.to_owned(), |(before, _)| format!("{before}://..."))
}

/// A text about a url without what [`url`] hides of it. Drivers cite parts of what they cannot read.
/// Cost: O(parts of the url × text).
pub fn about(whole: &str, text: &str) -> String {
    let shown = url(whole).to_lowercase();
    let known: Vec<&str> = pieces(&shown).collect();
    let raw = whole.to_lowercase();
    let decoded = decoded(&raw);
    let mut hidden: Vec<&str> = pieces(&raw).chain(pieces(&decoded)).collect();
    hidden.retain(|piece| !known.contains(piece));
    if hidden.is_empty() {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(|c: char| is_delimiter(c)) {
        let word = part.trim_end_matches(is_delimiter);
        let lower = word.to_lowercase();
        let cited = |piece: &&&str| lower == **piece || piece.len() >= CITED && lower.contains(**piece);
        match !word.is_empty() && hidden.iter().find(|piece| cited(piece)).is_some() {
            true => out.extend([HIDDEN, &part[word.len()..]]),
            false => out.push_str(part),
        }
    }
    out
}

/// Bytes of a hidden piece from which on it is found within a word, too.
const CITED: usize = 4;

fn is_delimiter(c: char) -> bool {
    c.is_whitespace() || c.is_control() || ":/?#[]@&=,;\"'`(){}<>".contains(c)
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_delimiter).filter(|piece| !piece.is_empty())
}

/// Percent signs with two digits become their bytes.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).to_lowercase()
}

/// Whether this follows `sqlite:` and is a path. `//` must be followed by one that is absolute.
fn is_file(rest: &str) -> bool {
    rest.strip_prefix("//").is_none_or(|path| path.starts_with('/'))
}

fn is_plain(text: &str, more: &[u8]) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || more.contains(&b))
}

/// The part behind `scheme://`, as it may be shown.
fn place(rest: &str) -> String {
    let (user, rest) = match rest.rsplit_once('@') {
        // The `@` may end a password with a `?`, or be part of a parameter's value.
        Some((before, after)) if before.contains('?') && after.contains(['?', '=', '&']) => {
            return match before.split_once(':').filter(|(user, _)| is_name(user)) {
                Some((user, _)) => format!("{user}:{HIDDEN}"),
                None => HIDDEN.into(),
            };
        }
        Some((before, _)) if before.contains('?') => return HIDDEN.into(),
        Some((before, after)) => (Some(before), after),
        None => (None, rest),
    };
    let user = user.map(|user| match user.split_once(':') {
        Some((name, _)) if is_name(name) => format!("{name}:{HIDDEN}@"),
        None if is_name(user) => format!("{user}@"),
        _ => format!("{HIDDEN}@"),
    });
    let (address, words) =
        rest.split_once('?').map_or((rest, None), |(address, words)| (address, Some(words)));
    let (hosts, path) = address.find('/').map_or((address, ""), |at| address.split_at(at));
    let hosts = if hosts.split(',').all(is_host) { hosts } else { HIDDEN };
    let path = match path {
        path if is_plain(path, b"/._-~%") => path,
        _ => "/***",
    };
    let words = words.map(|words| words.split('&').map(parameter).collect::<Vec<_>>().join("&"));
    let words = words.map_or(String::new(), |words| format!("?{words}"));
    format!("{}{hosts}{path}{words}", user.unwrap_or_default())
}

fn is_name(user: &str) -> bool {
    is_plain(user, b"_.-")
}

/// Whether it is a host with a port or without. What follows a colon may be a password, unless it is a port.
fn is_host(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(ip, port)| is_plain(ip, b":.%") && is_port(port));
    }
    let (name, port) = host.find(':').map_or((host, ""), |at| host.split_at(at));
    is_plain(&name.replace("%2F", "").replace("%2f", ""), b"_.-") && is_port(port)
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

fn parameter(word: &str) -> String {
    let Some((name, value)) = word.split_once('=') else { return HIDDEN.into() };
    let lower = name.to_ascii_lowercase();
    match () {
        _ if HARMLESS.contains(&&*lower) && is_plain(value, b"_.-/:,%") => word.into(),
        _ if HARMLESS.contains(&&*lower) || SECRET.contains(&&*lower) => format!("{name}={HIDDEN}"),
        _ => HIDDEN.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_harmless_is_shown() {
        for (from, to) in [
            ("postgres://app:secret@127.0.0.1:5432/shop", "postgres://app:***@127.0.0.1:5432/shop"),
            ("postgres://app@h/d", "postgres://app@h/d"),
            ("postgres://a/b@h/d", "postgres://***@h/d"),
            (
                "postgres://h/d?sslmode=require&sslpassword=s",
                "postgres://h/d?sslmode=require&sslpassword=***",
            ),
            ("postgres://h/d?p%61ssword=s&sslmode=s%26t=u", "postgres://h/d?***&sslmode=***"),
            ("postgres://h/d?sslmode=require;password=s", "postgres://h/d?sslmode=***"),
            ("postgres://h/d?secret", "postgres://h/d?***"),
            ("postgres://h/d?options=-c%20x.token%3Ds", "postgres://h/d?options=***"),
            ("postgres://u:p/q#s@h/d", "postgres://u:***@h/d"),
            ("postgres://u:p@q:r@h:5/d", "postgres://u:***@h:5/d"),
            ("postgres://:p@h/d", "postgres://:***@h/d"),
            ("postgres://u:secret", "postgres://***"),
            ("postgres://u:secret/x", "postgres://***/x"),
            ("postgres://[::1]:5/d", "postgres://[::1]:5/d"),
            ("postgres://%2Frun%2Fpg/d", "postgres://%2Frun%2Fpg/d"),
            ("postgres:u:secret@h", "postgres:***"),
            ("secret", "***"),
            ("mysql://u:secret@h/d", "mysql://u:***@h/d"),
            ("sqlite:shop.db", "sqlite:shop.db"),
            ("sqlite:///var/shop.db", "sqlite:///var/shop.db"),
            ("sqlite:file:shop.db?key=secret", "sqlite:file:shop.db?***"),
            ("sqlite://u:secret@h/d", "sqlite://u:***@h/d"),
            (
                "mongodb://u:s@h,i:2/d?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:s",
                "mongodb://u:***@h,i:2/d?authMechanism=MONGODB-AWS&authMechanismProperties=***",
            ),
            (
                "mongodb://h/d?tlsCertificateKeyFilePassword=s&replicaSet=r",
                "mongodb://h/d?tlsCertificateKeyFilePassword=***&replicaSet=r",
            ),
        ] {
            assert_eq!(url(from), to, "{from}");
        }
    }

    /// A secret of any characters, at any place that has one, is in nothing that is shown.
    #[test]
    fn no_secret_is_shown_whatever_its_characters() {
        for between in
            ["/", "?", "@", "#", ":", "&", "=", "%", "?a=b&", "@h/", "/?", "?@", "?sslmode=x@", "&w=1&"]
        {
            let secret = format!("Zeven{between}Acht9");
            for whole in [
                format!("postgres://u:{secret}@h/d"),
                format!("postgres://u:{secret}@h/d?sslmode=require"),
                format!("postgres://h/d?password={secret}"),
                format!("postgres://h/d?p%61ssword={secret}&sslmode=require"),
                format!("postgres://u:{secret}@h/d?password={secret}"),
                format!("mongodb://h/d?authMechanismProperties=TOKEN:{secret}&tls=true"),
            ] {
                let shown = url(&whole);
                let is_there = shown.contains("Zeven") || shown.contains("Acht9");
                assert!(!is_there, "{whole} is shown as {shown}");
            }
        }
    }

    #[test]
    fn texts_about_a_url_cite_nothing_of_it_that_is_hidden() {
        let about = |text| about("postgres://u:Zeven%40Acht@db:5/shop?hunter2=x&port=y", text);
        assert_eq!(about("url: unknown option `hunter2`"), "url: unknown option `***`");
        assert_eq!(about("bad address \"zeven@ACHT\" of db:5"), "bad address \"***@***\" of db:5");
        assert_eq!(about("prezevened: no shop"), "***: no shop");
        assert_eq!(about("no route to db"), "no route to db");
        assert_eq!(line("sorce a a:{id} \"postgres://u:p w@h"), "sorce a a:{id} \"postgres://...");
    }
}
