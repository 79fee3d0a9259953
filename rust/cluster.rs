//! The devices and the links between them.

mod links;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::program::{Conversion, Implementation};

/// One accelerator, or one CPU process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name, for people.
    pub name: String,
    /// FLOP/s by element type; the key `default` stands for every type that has no entry.
    pub flops: BTreeMap<String, f64>,
    /// Bytes per second between the device and its memory.
    pub memory_bandwidth: f64,
    /// Bytes of its memory.
    pub memory: f64,
    /// Bytes of it that a training job may not use.
    #[serde(default)]
    pub reserve: f64,
    /// Seconds that starting one operator costs.
    pub launch_overhead: f64,
    /// Measured seconds by amount of work, both rising: of families of operators by `family/element type`, such as
    /// `matmul/float32`, by FLOP; of work that `memory` bounds by bytes. What is not there follows from the above.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured: BTreeMap<String, Vec<(f64, f64)>>,
}

/// A link between the members of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes per second of each member, each way.
    pub bandwidth: f64,
    /// Seconds until the first byte arrives.
    pub latency: f64,
    /// Name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether nobody said that it is there.
    #[serde(default)]
    pub assumed: bool,
}

/// A member of a group: a device, or a group of its own (a host within a cluster).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Member {
    /// One device.
    Device(Device),
    /// A group of devices that share a link.
    Group(Group),
}

/// Devices or groups that are joined by one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The link that joins the members.
    pub link: Link,
    /// The members, in rank order.
    pub members: Vec<Member>,
}

/// Measured cost of a collective over the whole cluster: `latency + bytes / bandwidth`, of the bytes that the
/// slowest rank moves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCost {
    /// Seconds for nothing. Of a grouped collective: with a share on every device; devices without one are left out, and
    /// their part of it with them.
    pub latency: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// How far the measured times are off this line, as a fraction; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
}

/// The machines at hand: a tree of groups with devices as leaves. Ranks count the leaves from left to right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Always `hap-cluster-1`.
    pub format: String,
    /// The tree.
    pub root: Group,
    /// Measured collectives by `kind/implementation`, such as `all_gather/padded`; others are derived from the links.
    #[serde(default)]
    pub collectives: BTreeMap<String, CollectiveCost>,
    /// Share of communication that hides behind computation, 0 to 1.
    #[serde(default)]
    pub overlap: f64,
    /// Of that share, the part by which computation takes longer meanwhile, as measured: 0 to 1.
    #[serde(default)]
    pub interference: f64,
    /// Seconds by which a collective takes longer where computation goes on meanwhile, as measured.
    #[serde(default)]
    pub contention: f64,
    /// Of the hardware that it was measured on: SHA-256, in hexadecimal digits. Nothing here depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// What is wrong with a cluster, with the place of the figure in the tree.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ClusterError(String);

impl Device {
    /// FLOP/s for an element type: its own entry, else the one of `default`.
    pub fn flops_of(&self, dtype: &str) -> Option<f64> {
        self.flops.get(dtype).or_else(|| self.flops.get("default")).copied()
    }
}

impl Cluster {
    /// Reads and validates a cluster from JSON.
    ///
    /// # Errors
    /// Names the field that is missing, unknown or out of range.
    pub fn from_json(json: &str) -> Result<Self, ClusterError> {
        let cluster: Self =
            serde_json::from_str(json).map_err(|error| ClusterError(format!("the cluster cannot be read: {error}")))?;
        cluster.validate()?;
        Ok(cluster)
    }

    /// Share of communication's time in which computation goes on.
    pub fn hidden(&self) -> f64 {
        self.overlap * (1.0 - self.interference)
    }

    /// The devices in rank order: the leaves of the tree from left to right.
    pub fn devices(&self) -> Vec<&Device> {
        fn visit<'a>(group: &'a Group, devices: &mut Vec<&'a Device>) {
            for member in &group.members {
                match member {
                    Member::Device(device) => devices.push(device),
                    Member::Group(group) => visit(group, devices),
                }
            }
        }
        let mut devices = Vec::new();
        visit(&self.root, &mut devices);
        devices
    }

    /// Bytes that may be used, by device.
    pub fn capacities(&self) -> Vec<f64> {
        let devices = self.devices().into_iter();
        devices.map(|device| device.memory - device.reserve).collect()
    }

    /// Checks every figure.
    ///
    /// # Errors
    /// Names the first field that is wrong, by its place in the tree (`root.members[1].memory`), and what was
    /// expected.
    pub fn validate(&self) -> Result<(), ClusterError> {
        if self.format != "hap-cluster-1" {
            let message = format!("format is \"{}\", expected \"hap-cluster-1\"", self.format);
            return Err(ClusterError(message));
        }
        validate_group(&self.root, "root")?;
        for (field, value) in [("overlap", self.overlap), ("interference", self.interference)] {
            if !(0.0..=1.0).contains(&value) {
                let message = format!("{field} is {value}, expected a number from 0 to 1");
                return Err(ClusterError(message));
            }
        }
        not_negative(self.contention, "contention")?;
        if let Some(fingerprint) = &self.fingerprint {
            let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            if fingerprint.len() != 64 || !fingerprint.bytes().all(digit) {
                let message = format!("fingerprint is \"{fingerprint}\", expected 64 hexadecimal digits");
                return Err(ClusterError(message));
            }
        }
        for (name, cost) in &self.collectives {
            if !collective_names().contains(name) {
                let known = collective_names().join(", ");
                return Err(ClusterError(format!(
                    "collectives has an unknown entry \"{name}\", expected one of {known}"
                )));
            }
            not_negative(cost.latency, &format!("collectives[\"{name}\"].latency"))?;
            positive(cost.bandwidth, &format!("collectives[\"{name}\"].bandwidth"))?;
            not_negative(cost.error.unwrap_or(0.0), &format!("collectives[\"{name}\"].error"))?;
        }
        Ok(())
    }
}

/// Key of a measured collective in [`Cluster::collectives`].
pub fn collective_name(conversion: Conversion, implementation: Implementation) -> String {
    format!("{conversion}/{implementation}")
}

fn collective_names() -> Vec<String> {
    let collectives = [
        Conversion::AllGather,
        Conversion::AllReduce,
        Conversion::ReduceScatter,
        Conversion::AllToAll,
    ]
    .into_iter();
    collectives
        .flat_map(|kind| {
            kind.implementations()
                .iter()
                .map(move |how| collective_name(kind, *how))
        })
        .collect()
}

fn validate_group(group: &Group, path: &str) -> Result<(), ClusterError> {
    positive(group.link.bandwidth, &format!("{path}.link.bandwidth"))?;
    not_negative(group.link.latency, &format!("{path}.link.latency"))?;
    if group.members.is_empty() {
        return Err(ClusterError(format!(
            "{path}.members is empty, expected at least one device"
        )));
    }
    for (index, member) in group.members.iter().enumerate() {
        let path = format!("{path}.members[{index}]");
        match member {
            Member::Group(group) => validate_group(group, &path)?,
            Member::Device(device) => validate_device(device, &format!("{path} (device \"{}\")", device.name))?,
        }
    }
    Ok(())
}

fn validate_device(device: &Device, path: &str) -> Result<(), ClusterError> {
    if !device.flops.contains_key("default") {
        let message = format!("{path}: flops has no entry \"default\", which stands for every type without its own");
        return Err(ClusterError(message));
    }
    for (dtype, flops) in &device.flops {
        positive(*flops, &format!("{path}: flops[\"{dtype}\"]"))?;
    }
    positive(device.memory_bandwidth, &format!("{path}: memory_bandwidth"))?;
    positive(device.memory, &format!("{path}: memory"))?;
    not_negative(device.reserve, &format!("{path}: reserve"))?;
    not_negative(device.launch_overhead, &format!("{path}: launch_overhead"))?;
    for (name, points) in &device.measured {
        let path = format!("{path}: measured[\"{name}\"]");
        for (amount, seconds) in points {
            positive(*amount, &path)?;
            positive(*seconds, &path)?;
        }
        if points.len() < 2 || !points.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1) {
            return Err(ClusterError(format!(
                "{path}: expected at least two points, amounts and seconds rising"
            )));
        }
    }
    Ok(())
}

fn positive(value: f64, path: &str) -> Result<(), ClusterError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(ClusterError(format!("{path} is {value}, expected a positive number")))
}

fn not_negative(value: f64, path: &str) -> Result<(), ClusterError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(ClusterError(format!(
        "{path} is {value}, expected a number that is not negative"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = r#"{
        "format": "hap-cluster-1",
        "root": {
            "link": {"bandwidth": 1e9, "latency": 1e-5},
            "members": [
                {"group": {
                    "link": {"bandwidth": 1e10, "latency": 1e-4},
                    "members": [
                        {"device": {"name": "a", "flops": {"default": 1e12, "float16": 4e12}, "memory_bandwidth": 1e11, "memory": 8e9, "launch_overhead": 1e-6}},
                        {"device": {"name": "b", "flops": {"default": 2e12}, "memory_bandwidth": 1e11, "memory": 8e9, "launch_overhead": 0}}
                    ]
                }},
                {"device": {"name": "c", "flops": {"default": 3e12}, "memory_bandwidth": 1e11, "memory": 8e9, "launch_overhead": 0}}
            ]
        },
        "collectives": {"all_gather/padded": {"latency": 0, "bandwidth": 1e9}},
        "overlap": 0.5
    }"#;

    #[test]
    fn a_tree_is_read_in_rank_order() {
        let cluster = Cluster::from_json(TREE).expect("a valid cluster");
        let devices = cluster.devices();
        assert_eq!(
            devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
        assert_eq!(devices[0].flops_of("float16"), Some(4e12));
        assert_eq!(devices[1].flops_of("float16"), Some(2e12));
        assert_eq!(
            cluster.bottleneck(),
            Link {
                bandwidth: 1e9,
                latency: 1e-4,
                ..Link::default()
            }
        );
    }

    #[test]
    fn errors_name_the_field() {
        let cases = [
            (
                "\"memory\": 8e9, \"launch_overhead\": 1e-6",
                "\"launch_overhead\": 1e-6",
                "missing field `memory`",
            ),
            (
                "\"memory\": 8e9, \"launch_overhead\": 1e-6",
                "\"memory\": -1, \"launch_overhead\": 1e-6",
                "memory is -1",
            ),
            (
                "\"launch_overhead\": 1e-6",
                "\"launch_overhead\": -1e-6",
                "launch_overhead is -0.000001",
            ),
            (
                "\"default\": 2e12",
                "\"default\": 0",
                "root.members[0].members[1] (device \"b\"): flops[\"default\"] is 0",
            ),
            (
                "\"default\": 2e12",
                "\"float32\": 2e12",
                "flops has no entry \"default\"",
            ),
            (
                "\"bandwidth\": 1e10",
                "\"bandwidth\": 0",
                "root.members[0].link.bandwidth is 0",
            ),
            ("\"latency\": 1e-5", "\"latency\": -1", "root.link.latency is -1"),
            ("\"overlap\": 0.5", "\"overlap\": 1.5", "overlap is 1.5"),
            ("\"latency\": 0,", "\"latency\": 0, \"error\": -1,", "].error is -1"),
            ("\"overlap\": 0.5", "\"interference\": -1", "interference is -1"),
            ("\"overlap\": 0.5", "\"contention\": -1", "contention is -1"),
            ("\"overlap\": 0.5", "\"overlap\": NaN", "cannot be read"),
            (
                "\"overlap\": 0.5",
                "\"fingerprint\": \"12\"",
                "fingerprint is \"12\", expected 64",
            ),
            (
                "all_gather/padded",
                "all_gather/builtin",
                "unknown entry \"all_gather/builtin\"",
            ),
            ("hap-cluster-1", "hap-cluster-2", "format is \"hap-cluster-2\""),
            ("\"name\": \"a\"", "\"nam\": \"a\"", "unknown field `nam`"),
        ];
        for (text, replacement, what) in cases {
            let json = TREE.replacen(text, replacement, 1);
            assert_ne!(json, TREE, "{text}");
            let message = Cluster::from_json(&json).expect_err("not valid").to_string();
            assert!(message.contains(what), "{message}");
        }
        let mut cluster = Cluster::from_json(TREE).expect("a valid cluster");
        cluster.overlap = f64::NAN;
        assert!(cluster.validate().is_err());
        cluster.root.members.clear();
        assert!(
            cluster
                .validate()
                .expect_err("not valid")
                .to_string()
                .contains("root.members is empty")
        );
    }
}
