//! Whether the values of one type fit into another. They go over as text, and the target's input function reads them.

use super::columns::Kind;

/// How the values of a source column fit into a target column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fit {
    /// All of them do, as they are.
    Same,
    /// All of them do, and may look different afterwards.
    Changed(String),
    /// Some may not, or are changed on the way.
    Narrower(String),
    /// They do not.
    No,
}

/// Compares.
pub fn fit(source: &Kind, target: &Kind) -> Fit {
    let (from, into) = (source.name.as_str(), target.name.as_str());
    if from == into {
        return labels(source, target)
            .or_else(|| modifier(from, source.modifier, target.modifier))
            .unwrap_or(Fit::Same);
    }
    if let (Some(a), Some(b)) = (integer_rank(from), integer_rank(into)) {
        return if a <= b { Fit::Same } else { Fit::Narrower(format!("numbers that {into} cannot hold are refused")) };
    }
    match (from, into) {
        (_, "text") | (_, "character varying") if target.modifier < 0 => match source.category.as_str() {
            "S" if from != "character" => Fit::Same,
            _ => Fit::Changed("values are stored as their text".to_owned()),
        },
        ("text" | "character varying" | "character", "character varying" | "character") => {
            let longest = length(source.modifier);
            match (longest, length(target.modifier)) {
                (Some(a), Some(b)) if a <= b && into == "character varying" => Fit::Same,
                (Some(a), Some(b)) if a <= b => Fit::Changed("values are padded with blanks".to_owned()),
                (_, Some(b)) => Fit::Narrower(format!("texts of more than {b} characters are refused")),
                (_, None) => Fit::Same,
            }
        }
        (from, "numeric") if integer_rank(from).is_some() && target.modifier < 0 => Fit::Same,
        ("real", "double precision") => {
            Fit::Changed("0.1 stays 0.1, which is another binary value in the wider type".to_owned())
        }
        ("double precision" | "numeric", "real" | "double precision") => {
            Fit::Narrower("digits beyond what the type holds are lost".to_owned())
        }
        ("real" | "double precision", "numeric") => Fit::Narrower("digits beyond the scale are lost".to_owned()),
        ("date", "timestamp without time zone") => Fit::Changed("values become midnight of the day".to_owned()),
        ("timestamp without time zone", "timestamp with time zone") => {
            Fit::Changed("values are read as UTC".to_owned())
        }
        ("timestamp with time zone", "timestamp without time zone") => {
            Fit::Changed("values are stored as UTC, without their zone".to_owned())
        }
        ("timestamp without time zone" | "timestamp with time zone", "date") => {
            Fit::Narrower("the time of the day is lost".to_owned())
        }
        ("json", "jsonb") => {
            Fit::Changed("blanks, the order of keys and doubled keys are lost; \\u0000 is refused".to_owned())
        }
        ("jsonb", "json") => Fit::Same,
        _ if source.category == target.category || source.category == "S" || target.category == "S" => {
            Fit::Narrower(format!("what {into} cannot read or hold is refused, or rounded"))
        }
        // An enum, or a type of somebody's own, of another name: its values are names.
        _ if target.category == "E" || target.category == "U" && source.category == "U" => {
            Fit::Narrower(format!("what {into} cannot read is refused"))
        }
        _ => Fit::No,
    }
}

fn integer_rank(name: &str) -> Option<u8> {
    Some(match name {
        "smallint" => 1,
        "integer" => 2,
        "bigint" => 3,
        _ => return None,
    })
}

fn length(modifier: i32) -> Option<i32> {
    (modifier >= 4).then_some(modifier - 4)
}

fn labels(source: &Kind, target: &Kind) -> Option<Fit> {
    let (here, there) = (source.labels.as_ref()?, target.labels.as_ref()?);
    let missing: Vec<&str> = here.iter().filter(|label| !there.contains(label)).map(String::as_str).collect();
    if !missing.is_empty() {
        return Some(Fit::Narrower(format!("the target's enum lacks {}", missing.join(", "))));
    }
    let order: Vec<&String> = there.iter().filter(|label| here.contains(label)).collect();
    let same = order.into_iter().eq(here.iter());
    (!same).then(|| Fit::Changed("the labels of the enum sort in another order".to_owned()))
}

/// The same type with another length, precision or scale.
fn modifier(name: &str, source: i32, target: i32) -> Option<Fit> {
    if source == target || target < 0 {
        return None;
    }
    match name.trim_end_matches("[]") {
        "character varying" | "character" => {
            let longer = length(source).is_none_or(|a| length(target).is_some_and(|b| a > b));
            longer.then(|| {
                let most = length(target).unwrap_or_default();
                Fit::Narrower(format!("texts of more than {most} characters are refused"))
            })
        }
        "numeric" => {
            let parts = |modifier: i32| {
                // The scale can be negative from version 15 on: 11 bits, signed.
                let scale = ((modifier - 4) & 0x7ff) ^ 1024;
                ((modifier - 4) >> 16 & 0xffff, scale - 1024)
            };
            let (precision, scale) = parts(target);
            let fits = source >= 4 && {
                let (p, s) = parts(source);
                s <= scale && p - s <= precision - scale
            };
            (!fits).then(|| {
                Fit::Narrower(format!(
                    "it holds numeric({precision}, {scale}): more decimals are rounded, larger ones refused"
                ))
            })
        }
        "bit" | "bit varying" => Some(Fit::Narrower("bits of another length are refused".to_owned())),
        _ if source < 0 || target < source => {
            Some(Fit::Narrower("its precision is smaller: values are rounded".to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str, modifier: i32, category: &str) -> Kind {
        Kind { name: name.to_owned(), modifier, category: category.to_owned(), extension: None, labels: None }
    }

    fn numeric(precision: i32, scale: i32) -> Kind {
        kind("numeric", (precision << 16 | scale & 0x7ff) + 4, "N")
    }

    fn narrower(source: &Kind, target: &Kind) -> bool {
        matches!(fit(source, target), Fit::Narrower(_))
    }

    #[test]
    fn wider_is_fine_and_narrower_is_told() {
        let varchar = |n: i32| kind("character varying", if n < 0 { -1 } else { n + 4 }, "S");
        let (text, int, big) = (kind("text", -1, "S"), kind("integer", -1, "N"), kind("bigint", -1, "N"));
        assert_eq!(fit(&int, &big), Fit::Same);
        assert!(narrower(&big, &int));
        assert_eq!(fit(&varchar(5), &varchar(9)), Fit::Same);
        assert!(
            narrower(&varchar(9), &varchar(5)) && narrower(&varchar(-1), &varchar(5)) && narrower(&text, &varchar(5))
        );
        assert_eq!((fit(&varchar(5), &text), fit(&text, &varchar(-1))), (Fit::Same, Fit::Same));
        assert_eq!(fit(&numeric(5, 2), &numeric(6, 2)), Fit::Same);
        assert_eq!(fit(&numeric(5, 2), &kind("numeric", -1, "N")), Fit::Same);
        assert!(narrower(&numeric(5, 2), &numeric(5, 3)) && narrower(&numeric(5, 2), &numeric(5, 1)));
        assert!(narrower(&kind("numeric", -1, "N"), &numeric(9, 2)) && narrower(&numeric(5, 0), &numeric(5, -2)));
        assert_eq!(fit(&int, &kind("boolean", -1, "B")), Fit::No);
        assert_eq!(fit(&kind("uuid", -1, "U"), &kind("timestamp with time zone", -1, "D")), Fit::No);
        let (stamp, stamptz) = ("timestamp without time zone", "timestamp with time zone");
        assert!(matches!(fit(&kind(stamp, -1, "D"), &kind(stamptz, -1, "D")), Fit::Changed(_)));
        assert!(narrower(&kind(stamp, -1, "D"), &kind(stamp, 3, "D")));
        assert_eq!(fit(&kind(stamp, 3, "D"), &kind(stamp, 6, "D")), Fit::Same);
    }

    #[test]
    fn enums_are_compared_by_their_labels() {
        let mood = |labels: &[&str]| Kind {
            labels: Some(labels.iter().map(|label| (*label).to_owned()).collect()),
            ..kind("public.mood", -1, "E")
        };
        assert_eq!(fit(&mood(&["a", "b"]), &mood(&["a", "x", "b"])), Fit::Same);
        assert!(narrower(&mood(&["a", "b"]), &mood(&["a"])));
        assert!(matches!(fit(&mood(&["a", "b"]), &mood(&["b", "a"])), Fit::Changed(_)));
    }
}
