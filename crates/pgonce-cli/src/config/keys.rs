//! The one list of configuration keys. It feeds the flags, the reader of the file, its suggestions, and the
//! documentation.

/// A key of the configuration file, which is a flag too.
#[derive(Debug)]
pub struct Key {
    /// Where it stands in the file: `source.url` is `url` in the section `source`.
    pub path: &'static str,
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// What stands for the value in the help text.
    pub value: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// What holds where it is not set, in words.
    pub default: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// What the value of a key may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A connection string. It may hold a password: it is never printed, and may be a reference to a file.
    Url,
    /// A word.
    Text,
    /// Words; in the file also a single one.
    List,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number, 1 or more.
    Count,
    /// `true` or `false`.
    Boolean,
}

impl Key {
    /// The section of the file that holds the key, if one does.
    pub fn section(&self) -> Option<&'static str> {
        self.path.split_once('.').map(|(section, _)| section)
    }

    /// The key's name within its section.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// What its value may be, in words.
    pub fn allowed(&self) -> String {
        match self.kind {
            Kind::Url => "a connection string, or {file: PATH} to read it from a file".to_owned(),
            Kind::Text => "a single word".to_owned(),
            Kind::List => "a word, or a list of words".to_owned(),
            Kind::Choice(words) => words.join(" or "),
            Kind::Count => "a whole number, 1 or more".to_owned(),
            Kind::Boolean => "true or false".to_owned(),
        }
    }
}

/// The key with this path. The paths in this program are all in the list.
pub fn key(path: &str) -> &'static Key {
    KEYS.iter().find(|key| key.path == path).unwrap_or(&KEYS[0])
}

/// Every key, in the order in which they are documented.
pub static KEYS: &[Key] = &[
    Key {
        path: "flow",
        flag: "flow",
        value: "NAME",
        kind: Kind::Text,
        default: "none: it must be set",
        help: "Names the flow: its state on the target, and by default its slot, publication and data directory. \
               Lower-case letters, digits and underscores, at most 40",
    },
    Key {
        path: "source.url",
        flag: "source",
        value: "URL",
        kind: Kind::Url,
        default: "none: it must be set",
        help: "The database that changes are read from: a URI or key/value connection string, as libpq takes it",
    },
    Key {
        path: "source.id",
        flag: "source-id",
        value: "ID",
        kind: Kind::Text,
        default: "the cluster's system identifier and the database",
        help: "Names the source in record keys",
    },
    Key {
        path: "source.tables",
        flag: "tables",
        value: "PATTERN",
        kind: Kind::List,
        default: "every table outside system schemas and pgonce",
        help: "The tables to carry, as schema.table with * for any text; pgonce makes a publication of them. \
               Not together with a publication",
    },
    Key {
        path: "source.publication",
        flag: "publication",
        value: "NAME",
        kind: Kind::List,
        default: "pgonce_<flow>, made at the first start",
        help: "Publications that exist, made by an administrator. Not together with tables",
    },
    Key {
        path: "source.slot",
        flag: "slot",
        value: "NAME",
        kind: Kind::Text,
        default: "pgonce_<flow>, made at the first start",
        help: "The replication slot. One that exists is used as it is",
    },
    Key {
        path: "target.url",
        flag: "target",
        value: "URL",
        kind: Kind::Url,
        default: "none: it must be set",
        help: "The database that changes are applied to: a URI or key/value connection string, as libpq takes it",
    },
    Key {
        path: "target.synchronous_commit",
        flag: "synchronous-commit",
        value: "SETTING",
        kind: Kind::Choice(&["off", "on"]),
        default: "off",
        help: "Whether each commit on the target waits for its disk. Either way the source is only told of what the \
               target has flushed, so that `off` costs no safety",
    },
    Key {
        path: "stream",
        flag: "stream",
        value: "STREAM",
        kind: Kind::Text,
        default: "none",
        help: "What lies between source and target. `none`: the slot feeds the target directly",
    },
    Key {
        path: "start",
        flag: "start",
        value: "MODE",
        kind: Kind::Choice(&["snapshot", "go-forward"]),
        default: "snapshot",
        help: "How a flow begins that has no checkpoint. `snapshot` copies the tables first; `go-forward` copies \
               nothing, begins at the slot's position, and expects a target that is a copy already",
    },
    Key {
        path: "copy_schema",
        flag: "copy-schema",
        value: "BOOL",
        kind: Kind::Boolean,
        default: "false",
        help: "Whether the target's tables are created. Only `false` so far",
    },
    Key {
        path: "jobs",
        flag: "jobs",
        value: "N",
        kind: Kind::Count,
        default: "4",
        help: "How many tables, or ranges of large tables, are copied at a time, at most. Each takes a connection to \
               either database",
    },
    Key {
        path: "data_dir",
        flag: "data-dir",
        value: "DIR",
        kind: Kind::Text,
        default: "./pgonce-data/<flow>",
        help: "Directory for the lock and for spilled transactions, of one process at a time",
    },
];
