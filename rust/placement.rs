//! How a tensor lies on the devices.

use serde::{Deserialize, Serialize};

/// Placement of a tensor on one level of the device mesh.
///
/// Written as a short string in JSON: `"R"`, `"P"`, `"S3"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// Every device holds the whole tensor.
    Replicate,
    /// Every device holds its share of one occurrence of an axis: an index into the tensor's flattened list of axes.
    Shard(u32),
    /// Every device holds a summand of the tensor's shape; the tensor is their sum.
    Partial,
}

/// Placement of a tensor on every level of the device mesh, outermost first. There is one level today.
pub type Placements = Vec<Placement>;

/// A string is not a placement.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not a placement: expected \"R\", \"P\" or \"S\" with an occurrence, such as \"S3\"")]
pub struct ParsePlacementError(String);

impl TryFrom<String> for Placement {
    type Error = ParsePlacementError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "R" => Ok(Self::Replicate),
            "P" => Ok(Self::Partial),
            _ => match text.strip_prefix('S').and_then(|occurrence| occurrence.parse().ok()) {
                Some(occurrence) => Ok(Self::Shard(occurrence)),
                None => Err(ParsePlacementError(text)),
            },
        }
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Replicate => f.write_str("R"),
            Self::Partial => f.write_str("P"),
            Self::Shard(occurrence) => write!(f, "S{occurrence}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_short_strings_in_json() {
        for (placement, text) in [
            (Placement::Replicate, "\"R\""),
            (Placement::Partial, "\"P\""),
            (Placement::Shard(3), "\"S3\""),
        ] {
            assert_eq!(serde_json::to_string(&placement).expect("a string"), text);
            assert_eq!(serde_json::from_str::<Placement>(text).expect("a placement"), placement);
        }
        assert!(serde_json::from_str::<Placement>("\"S\"").is_err());
        assert!(serde_json::from_str::<Placement>("\"T1\"").is_err());
    }
}
