//! `require_auth`: by which methods the server may authenticate us.

/// How a server asks the client who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AuthMethod {
    /// Not at all; perhaps it trusts, or has seen a client certificate.
    None,
    /// By the password in clear.
    Password,
    /// By an MD5 hash of it.
    Md5,
    /// By SCRAM-SHA-256.
    Scram,
    /// GSSAPI, SSPI and OAuth, which are not supported.
    Other(&'static str),
}

const METHODS: &[AuthMethod] = &[
    AuthMethod::Password,
    AuthMethod::Md5,
    AuthMethod::Other("gss"),
    AuthMethod::Other("sspi"),
    AuthMethod::Scram,
    AuthMethod::Other("oauth"),
    AuthMethod::None,
];

impl AuthMethod {
    /// The method as it is written in a connection string.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            AuthMethod::None => "none",
            AuthMethod::Password => "password",
            AuthMethod::Md5 => "md5",
            AuthMethod::Scram => "scram-sha-256",
            AuthMethod::Other(name) => name,
        }
    }
}

/// The methods that are allowed, or those that are not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequiredAuth {
    methods: Vec<AuthMethod>,
    negated: bool,
}

impl RequiredAuth {
    /// Reads a list: `scram-sha-256,none`, or `!password,!md5`.
    pub(super) fn parse(text: &str) -> Result<RequiredAuth, String> {
        let (mut methods, mut negated) = (Vec::new(), None);
        for word in text.split(',').map(str::trim) {
            let name = word.strip_prefix('!');
            if *negated.get_or_insert(name.is_some()) != name.is_some() {
                return Err("methods with and without ! cannot stand together".to_owned());
            }
            let name = name.unwrap_or(word);
            let Some(method) = METHODS.iter().copied().find(|method| method.as_str() == name) else {
                let names: Vec<&str> = METHODS.iter().map(|method| method.as_str()).collect();
                return Err(format!("accepted, each once and perhaps with a ! before each: {}", names.join(", ")));
            };
            if methods.contains(&method) {
                return Err(format!("{name} stands there twice"));
            }
            methods.push(method);
        }
        Ok(RequiredAuth { methods, negated: negated.unwrap_or_default() })
    }

    /// Whether the server may ask in this way.
    pub(super) fn allows(&self, method: AuthMethod) -> bool {
        self.methods.contains(&method) != self.negated
    }
}

impl std::fmt::Display for RequiredAuth {
    /// As it is written in a connection string.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.negated { "!" } else { "" };
        let words: Vec<String> = self.methods.iter().map(|method| format!("{sign}{}", method.as_str())).collect();
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_allowed_or_struck_out() {
        let only = RequiredAuth::parse("scram-sha-256, none").unwrap();
        assert!(only.allows(AuthMethod::Scram) && only.allows(AuthMethod::None) && !only.allows(AuthMethod::Md5));
        let not = RequiredAuth::parse("!password,!none").unwrap();
        assert!(not.allows(AuthMethod::Scram) && !not.allows(AuthMethod::None) && !not.allows(AuthMethod::Password));
        assert_eq!((only.to_string(), not.to_string()), ("scram-sha-256,none".into(), "!password,!none".into()));
        for wrong in ["scram", "md5,!none", "!md5,none", "md5,md5", "md5,", "!"] {
            assert!(RequiredAuth::parse(wrong).is_err(), "{wrong}");
        }
    }
}
