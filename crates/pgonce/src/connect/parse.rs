//! The two spellings of a connection string, taken apart into keys and values.
//!
//! See PostgreSQL, libpq, "Connection Strings". Positions are bytes from 1. No error here quotes a value, and none
//! quotes a key that may be the tail of a password that was not escaped.

use super::keys;
use super::parse_error::ParseConnectionError;

/// A key with its value, in the order they stand. A later one overrides an earlier one.
pub(super) type Pairs = Vec<(&'static keys::Key, String)>;

type Result<T> = std::result::Result<T, ParseConnectionError>;

/// Takes `text` apart, be it a URI or keys and values.
pub(super) fn pairs(text: &str) -> Result<Pairs> {
    if let Some(position) = text.find('\0') {
        return Err(syntax(position, "a NUL character"));
    }
    for scheme in ["postgresql://", "postgres://"] {
        if text.starts_with(scheme) {
            return Uri { text, pairs: Pairs::new() }.parse(scheme.len());
        }
    }
    let word = text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len());
    if text[..word].contains("://") {
        return Err(syntax(0, "a URI starts with postgres:// or postgresql://"));
    }
    key_values(text)
}

fn syntax(byte: usize, reason: &'static str) -> ParseConnectionError {
    ParseConnectionError::Syntax { position: byte + 1, reason }
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0B
}

/// `key = value` and `key='value'`, separated by blanks; a backslash takes the next character as it is.
fn key_values(text: &str) -> Result<Pairs> {
    let bytes = text.as_bytes();
    let mut pairs = Pairs::new();
    let mut at = 0;
    let mut after_bare_password = false;
    let skip_spaces = |mut at: usize| {
        while at < bytes.len() && is_space(bytes[at]) {
            at += 1;
        }
        at
    };
    loop {
        at = skip_spaces(at);
        if at == bytes.len() {
            return Ok(pairs);
        }
        let start = at;
        while at < bytes.len() && bytes[at] != b'=' && !is_space(bytes[at]) {
            at += 1;
        }
        let name = &text[start..at];
        at = skip_spaces(at);
        let known = if at < bytes.len() && bytes[at] == b'=' { Some(keys::find(name)) } else { None };
        let key = match known {
            Some(Some(key)) => key,
            _ if after_bare_password => {
                return Err(syntax(
                    start,
                    "no key follows the password; a password with a blank is quoted: password='a b'",
                ));
            }
            Some(None) => return Err(unknown(name)),
            None => {
                return Err(syntax(start, "a key without = and a value; a value with a blank is quoted: key='a b'"));
            }
        };
        at = skip_spaces(at + 1);
        let quoted = bytes.get(at) == Some(&b'\'');
        let opening = at;
        if quoted {
            at += 1;
        }
        let mut value = Vec::new();
        loop {
            match bytes.get(at) {
                None if quoted => return Err(syntax(opening, "a quote is opened here and never closed")),
                None => break,
                Some(b'\'') if quoted => {
                    at += 1;
                    break;
                }
                Some(byte) if !quoted && is_space(*byte) => break,
                Some(b'\\') => {
                    value.extend(bytes.get(at + 1));
                    at = (at + 2).min(bytes.len());
                }
                Some(byte) => {
                    value.push(*byte);
                    at += 1;
                }
            }
        }
        // Only ASCII characters were left out, so what remains is UTF-8.
        let value = String::from_utf8(value).map_err(|_| syntax(opening, "a value that is not UTF-8"))?;
        after_bare_password = key.name == "password" && !quoted;
        pairs.push((key, value));
    }
}

fn unknown(name: &str) -> ParseConnectionError {
    ParseConnectionError::UnknownKey { key: name.to_owned(), nearest: keys::nearest(name) }
}

const STRAY_AT: &str =
    "an @ stands behind this place: in a password, write @ as %40, / as %2F, : as %3A, ? as %3F, % as %25";

struct Uri<'a> {
    text: &'a str,
    pairs: Pairs,
}

impl Uri<'_> {
    /// `postgresql://[user[:password]@][host[:port][,...]][/dbname][?key=value[&...]]`, from behind the scheme.
    fn parse(mut self, scheme: usize) -> Result<Pairs> {
        let text = self.text;
        let authority_end = text[scheme..].find(['/', '?']).map_or(text.len(), |length| scheme + length);
        // libpq lets the user part end at the first @ and never at a ?, but at a /.
        let hosts = match text[scheme..].find(['@', '/']).map(|length| scheme + length) {
            Some(at) if text.as_bytes()[at] == b'@' => {
                self.user(scheme, at)?;
                at + 1
            }
            _ => scheme,
        };
        let hosts_end = if hosts > authority_end {
            text[hosts..].find(['/', '?']).map_or(text.len(), |length| hosts + length)
        } else {
            authority_end
        };
        self.hosts(hosts, hosts_end)?;
        let query = text[hosts_end..].find('?').map_or(text.len(), |length| hosts_end + length);
        if query > hosts_end + 1 {
            self.push("dbname", self.decoded(hosts_end + 1, query)?);
        }
        if query < text.len() {
            self.query(query + 1)?;
        }
        Ok(self.pairs)
    }

    fn push(&mut self, name: &str, value: String) {
        if let Some(key) = keys::find(name) {
            self.pairs.push((key, value));
        }
    }

    fn user(&mut self, start: usize, end: usize) -> Result<()> {
        let colon = self.text[start..end].find(':').map(|length| start + length);
        let user_end = colon.unwrap_or(end);
        if user_end > start {
            self.push("user", self.decoded(start, user_end)?);
        }
        if let Some(colon) = colon.filter(|colon| colon + 1 < end) {
            self.push("password", self.decoded(colon + 1, end)?);
        }
        Ok(())
    }

    /// What is wrong at `byte`; if an `@` follows, more likely a password that was not escaped.
    fn blame(&self, byte: usize, reason: &'static str) -> ParseConnectionError {
        syntax(byte, if self.text[byte..].contains('@') { STRAY_AT } else { reason })
    }

    fn hosts(&mut self, start: usize, end: usize) -> Result<()> {
        if start == end {
            return Ok(());
        }
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        let mut at = start;
        for element in self.text[start..end].split(',') {
            let element_end = at + element.len();
            let (host_start, host_end, port) = if element.starts_with('[') {
                let close = element.find(']').map(|length| at + length);
                let close = close.ok_or_else(|| self.blame(at, "an IPv6 address lacks its closing ]"))?;
                (at + 1, close, &self.text[close + 1..element_end])
            } else {
                let host_end = element.find(':').map_or(element_end, |length| at + length);
                (at, host_end, &self.text[host_end..element_end])
            };
            let port = match port.strip_prefix(':') {
                Some(port) => port,
                None if port.is_empty() => port,
                None => return Err(self.blame(host_end, "behind a host's ] comes : and a port, a comma, / or ?")),
            };
            if port.parse::<u16>().is_err() && !port.is_empty() {
                return Err(self.blame(element_end - port.len(), "a port is a number from 1 to 65535"));
            }
            let host = self.decoded(host_start, host_end)?;
            if self.text[host_start..host_end].contains('@') {
                return Err(syntax(host_start, STRAY_AT));
            }
            if host.contains(',') {
                return Err(syntax(host_start, "a comma within a host"));
            }
            hosts.push(host);
            ports.push(port);
            at = element_end + 1;
        }
        if hosts.iter().any(|host| !host.is_empty()) {
            self.push("host", hosts.join(","));
        }
        if ports.iter().any(|port| !port.is_empty()) {
            let ports = ports.join(",");
            self.push("port", ports);
        }
        Ok(())
    }

    fn query(&mut self, start: usize) -> Result<()> {
        let mut at = start;
        for parameter in self.text[start..].split('&') {
            let end = at + parameter.len();
            let from = at;
            at = end + 1;
            let Some(equals) = parameter.find('=').map(|length| from + length) else {
                return Err(self.blame(from, "a parameter without ="));
            };
            if self.text[equals + 1..end].contains('=') {
                return Err(self.blame(equals, "a second = in one parameter: write it as %3D"));
            }
            let name = self.decoded(from, equals)?;
            let value = self.decoded(equals + 1, end)?;
            match keys::find(&name) {
                Some(key) => self.pairs.push((key, value)),
                // JDBC's spelling, which libpq takes as well.
                None if name == "ssl" && value == "true" => self.push("sslmode", "require".to_owned()),
                None if self.text[from..].contains('@') => return Err(syntax(from, STRAY_AT)),
                None => return Err(unknown(&name)),
            }
        }
        Ok(())
    }

    /// The text of a range, its %-escapes decoded.
    fn decoded(&self, start: usize, end: usize) -> Result<String> {
        let bytes = self.text.as_bytes();
        let mut decoded = Vec::with_capacity(end - start);
        let mut at = start;
        while at < end {
            if bytes[at] != b'%' {
                decoded.push(bytes[at]);
                at += 1;
                continue;
            }
            let digit =
                |offset: usize| (at + offset < end).then(|| char::from(bytes[at + offset]).to_digit(16)).flatten();
            match (digit(1), digit(2)) {
                (Some(0), Some(0)) => {
                    return Err(syntax(at, "%00 stands for a NUL character, which no value may hold"));
                }
                // Two hexadecimal digits fit a byte.
                (Some(high), Some(low)) => decoded.push((high << 4 | low) as u8),
                _ => return Err(syntax(at, "% is followed by two hexadecimal digits; % itself is written %25")),
            }
            at += 3;
        }
        String::from_utf8(decoded).map_err(|_| syntax(start, "the escapes of this part do not decode to UTF-8"))
    }
}
